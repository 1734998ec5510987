// Draws the matrices of `figure.kv-array`, made by kvlib/explore_array.py: the numbers come as a
// grey picture, one pixel each, and the controls choose which matrix is drawn.
(() => {
  "use strict";
  const BLANK = "#e4e7eb", INK = "#3a3f47", NO_NUMBER = 255;

  const readNumbers = async (address) => {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, image.width, image.height).data;
    return pixels.filter((_, i) => i % 4 === 0);
  };

  const setUp = async (figure) => {
    const data = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const levels = await readNumbers(data.numbers);
    const controls = [...figure.querySelectorAll("input, select")];
    const canvas = figure.querySelector("canvas");
    const output = figure.querySelector(".kv-readout output");
    const [R, C] = [data.rows.length, data.columns.length];
    const number = (level) => data.low + (level / (NO_NUMBER - 1)) * (data.high - data.low);
    let place = null; // where the matrix lies in the canvas, for the pointer

    const matrix = () => {
      const leading = data.reveal ? controls.slice(0, -1) : controls;
      const at = leading.reduce((i, c, axis) => i * data.axes[axis][1].length + Number(c.value), 0);
      return levels.subarray(at * R * C, (at + 1) * R * C);
    };
    const lastRow = () => (data.reveal ? Number(controls.at(-1).value) : R - 1);

    const sayRow = (row) => {
      const entries = [...matrix().subarray(row * C, (row + 1) * C)]
        .map((level, column) => [level, column])
        .filter(([level]) => level !== NO_NUMBER)
        .sort((a, b) => Math.abs(number(b[0])) - Math.abs(number(a[0])))
        .slice(0, 3)
        .map(([level, column]) => `${data.columns[column].trim()} ${number(level).toFixed(2)}`);
      return `${data.rows[row].trim()}: ${entries.join(", ")}`;
    };

    const scaleWidth = data.colours.length * 0.6;
    const draw = () => {
      const ratio = window.devicePixelRatio || 1, widest = figure.clientWidth - 12;
      const context = canvas.getContext("2d");
      const font = "12px system-ui, sans-serif";
      context.font = font;
      const wide = (names) => Math.max(...names.map((name) => context.measureText(name).width));
      const left = Math.min(wide(data.rows), widest / 4) + 8;
      const room = Math.min((widest - left) / C, 26);
      const named = room >= 10, below = named ? Math.min(wide(data.columns), 90) + 8 : 4;
      const scale = 30; // height of the colour scale at the bottom
      // The controls above and the read-out below stay on the screen; names stay readable.
      const cell = Math.min(room, Math.max((0.6 * window.innerHeight - below - scale) / R, 10));
      const tall = cell * R, width = Math.min(widest, left + Math.max(C * cell, scaleWidth + 50));
      canvas.width = width * ratio;
      canvas.height = (tall + below + scale) * ratio;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${tall + below + scale}px`;
      context.scale(ratio, ratio);
      context.font = font;
      context.textBaseline = "middle";
      place = { left, cell };
      const shown = matrix(), last = lastRow();
      for (let row = 0; row < R; row++) {
        for (let column = 0; column < C; column++) {
          const level = row > last ? NO_NUMBER : shown[row * C + column];
          context.fillStyle = level === NO_NUMBER ? BLANK : data.colours[level];
          context.fillRect(left + column * cell, row * cell, cell + 0.5, cell + 0.5);
        }
        context.fillStyle = INK;
        context.textAlign = "right";
        if (named) context.fillText(data.rows[row], left - 5, (row + 0.5) * cell, left - 6);
      }
      if (data.reveal) {
        context.strokeStyle = "#d55e00";
        context.lineWidth = 2;
        context.strokeRect(left + 1, last * cell + 1, C * cell - 2, cell - 1);
      }
      for (let column = 0; named && column < C; column++) {
        context.save();
        context.translate(left + (column + 0.5) * cell, tall + 5);
        context.rotate(-Math.PI / 2);
        context.fillStyle = INK;
        context.fillText(data.columns[column], 0, 0, below - 6);
        context.restore();
      }
      drawScale(context, left, tall + below + 12);
    };

    const drawScale = (context, left, top) => {
      data.colours.forEach((colour, level) => {
        context.fillStyle = colour;
        context.fillRect(left + level * 0.6, top, 1, 9);
      });
      context.fillStyle = INK;
      context.textAlign = "right";
      context.fillText(data.low.toFixed(2), left - 6, top + 5);
      context.textAlign = "left";
      context.fillText(data.high.toFixed(2), left + scaleWidth + 6, top + 5);
    };

    const show = () => {
      const chosen = controls.map((control, axis) => {
        const text = data.axes[axis][1][Number(control.value)];
        const label = control.parentElement.querySelector("output");
        if (label) label.textContent = text;
        if (label) control.setAttribute("aria-valuetext", text);
        return `${data.axes[axis][0]} ${text}`;
      });
      draw();
      output.textContent = sayRow(lastRow());
      canvas.setAttribute("aria-label", `${data.alt} (${chosen.join(", ")}). ${output.textContent}`);
    };

    canvas.addEventListener("pointermove", (event) => {
      const row = Math.floor(event.offsetY / place.cell);
      if (row >= 0 && row <= lastRow()) output.textContent = sayRow(row);
    });
    controls.forEach((control) => control.addEventListener("input", show));
    figure.querySelector("img").remove();
    figure.querySelector(".kv-hint").remove();
    figure.querySelectorAll("[hidden]").forEach((element) => (element.hidden = false));
    new ResizeObserver(draw).observe(figure);
    show();
  };

  document.querySelectorAll("figure.kv-array").forEach(setUp);
})();
