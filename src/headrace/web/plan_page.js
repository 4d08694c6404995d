// The page works without this: it keeps the shape whose account is shown marked, and lets Escape close it.
const mark = () => {
  document.querySelectorAll("svg .shown").forEach((shape) => shape.classList.remove("shown"));
  const wanted = decodeURIComponent(location.hash);
  document.querySelectorAll("svg a").forEach((shape) => {
    if (shape.getAttribute("href") === wanted) shape.classList.add("shown");
  });
};
addEventListener("hashchange", mark);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") location.hash = "#top";
});
mark();
