// The chosen theme to an attribute of the page, before anything is drawn; "auto" follows the system.
(() => {
  const themes = ["auto", "light", "dark"];
  const kept = () => {
    try {
      return localStorage.getItem("slalom-theme");
    } catch {
      return null; // storage may be forbidden
    }
  };
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };
  const now = () => (themes.includes(kept()) ? kept() : "auto");
  let theme = now();
  show(theme);
  document.addEventListener("DOMContentLoaded", () => {
    show(theme);
    document.getElementById("theme").addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try {
        localStorage.setItem("slalom-theme", theme);
      } catch {
        // then it lasts as long as the page
      }
      show(theme);
    });
  });
})();
