// A formula is no control: the tabulator key passes it by, unless it has to be scrolled to be read.
(() => {
  "use strict";
  const passBy = () =>
    document.querySelectorAll("mjx-container[tabindex]").forEach((formula) => {
      const scrolls = formula.scrollWidth > formula.clientWidth + 4; // italics lean out a little
      formula.tabIndex = scrolls && formula.hasAttribute("display") ? 0 : -1;
    });
  window.addEventListener("load", () => window.MathJax?.startup?.promise.then(passBy));
})();
