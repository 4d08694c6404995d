// The page works without this: it marks the box whose description is shown, lets Escape close it, and fits the plan.
const mark = () => {
  document.querySelectorAll(".plan .shown").forEach((box) => box.classList.remove("shown"));
  const wanted = decodeURIComponent(location.hash);
  document.querySelectorAll(".plan a").forEach((box) => {
    if (box.getAttribute("href") === wanted) box.classList.add("shown");
  });
};
addEventListener("hashchange", mark);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") location.hash = "#top";
});
mark();

const SMALLEST = 0.7; // what would have to be smaller is scrolled instead, at its own size
const plan = document.querySelector(".plan");
const frame = plan.parentElement;
const more = () => frame.classList.toggle("more", frame.scrollWidth - frame.scrollLeft > frame.clientWidth + 2);
const fit = () => {
  const { paddingLeft, paddingRight } = getComputedStyle(frame);
  const room = frame.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  const share = room / parseFloat(plan.style.width);
  plan.style.zoom = SMALLEST > share ? 1 : Math.min(1, share);
  frame.classList.toggle("wide", frame.scrollWidth > frame.clientWidth + 2);
  more();
};
frame.addEventListener("scroll", more, { passive: true });
addEventListener("resize", fit);
fit();
