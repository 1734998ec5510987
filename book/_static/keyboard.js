// The tabulator key stops at what has to be scrolled to be read, tables and formulas, at no other.
(() => {
  "use strict";
  const scrolls = (part) => part.scrollWidth > part.clientWidth + 4; // italics lean out a little
  const passBy = () =>
    document.querySelectorAll("mjx-container[tabindex]").forEach((formula) => {
      formula.tabIndex = scrolls(formula) && formula.hasAttribute("display") ? 0 : -1;
    });
  const stopAtTables = () =>
    document.querySelectorAll(".bd-article table").forEach((table) => {
      if (scrolls(table)) table.tabIndex = 0;
      else table.removeAttribute("tabindex");
    });
  window.addEventListener("load", () => window.MathJax?.startup?.promise.then(passBy));
  window.addEventListener("load", stopAtTables);
  window.addEventListener("resize", stopAtTables);
})();
