// The page works without this: it marks the box whose description is shown, and lets Escape close it.
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
