// Moves the interactive figures of the book, which has no kernel: each `figure.kv-explore` carries
// its pictures (made by kvlib/explore.py), and its controls pick one of them.
(() => {
  "use strict";

  const setUp = (figure) => {
    const data = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const image = figure.querySelector("img");
    const controls = [...figure.querySelectorAll("input, select")];

    const show = () => {
      const chosen = controls.map((control) => Number(control.value));
      const frame = chosen.reduce((at, value, axis) => at * data.labels[axis].length + value, 0);
      image.src = data.frames[frame];
      image.alt = data.alt[frame];
      controls.forEach((control, axis) => {
        const output = control.parentElement.querySelector("output");
        if (!output) return; // a menu shows its own value
        output.textContent = data.labels[axis][chosen[axis]];
        control.setAttribute("aria-valuetext", output.textContent);
      });
    };

    controls.forEach((control) => control.addEventListener("input", show));
    figure.querySelector(".kv-hint").remove();
    figure.querySelector(".kv-controls").hidden = false;
  };

  document.querySelectorAll("figure.kv-explore").forEach(setUp);
})();
