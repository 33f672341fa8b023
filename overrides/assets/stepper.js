// A strip of frames is stepped: its buttons, its slider, arrow keys, Home, End.
// Style alone shows one frame at a time, so that nothing moves on loading. The
// address of a frame shows it.
for (const strip of document.querySelectorAll(".steps")) {
  const frames = [...strip.querySelectorAll(".frame")];
  const [back, on] = strip.querySelectorAll("button");
  const told = strip.querySelector("output");
  const slider = strip.querySelector("input");
  const show = (n) => {
    if (!frames[n]) return;
    frames.forEach((frame, i) => frame.classList.toggle("now", i === n));
    back.ariaDisabled = n === 0;
    on.ariaDisabled = n === frames.length - 1;
    slider.value = n;
    told.firstChild.textContent = `${n + 1} / ${frames.length}`;
    told.lastChild.textContent = frames[n].querySelector(".said").textContent;
  };
  const now = () => frames.findIndex((frame) => frame.matches(".now"));
  const go = (n) => {
    show(n);
    history.replaceState(null, "", `#${frames[now()].id}`);
  };
  const follow = () => show(frames.findIndex(({ id }) => `#${id}` === location.hash));
  addEventListener("hashchange", follow);
  follow();
  back.addEventListener("click", () => go(now() - 1));
  on.addEventListener("click", () => go(now() + 1));
  slider.addEventListener("input", () => go(Number(slider.value)));
  strip.querySelector(".frames").tabIndex = 0;
  strip.addEventListener("keydown", (event) => {
    const { key, altKey, ctrlKey, metaKey, target } = event;
    if (altKey || ctrlKey || metaKey || target.closest("details, input")) return;
    const to = {
      ArrowLeft: Math.max(now() - 1, 0),
      ArrowRight: Math.min(now() + 1, frames.length - 1),
      Home: 0,
      End: frames.length - 1,
    }[key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  });
}
