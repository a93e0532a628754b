"use strict";
(() => {
  const root = document.documentElement;
  const said = document.getElementById("said");

  // --- light and dark ---
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const recall = () => { try { return localStorage.getItem("perdure-theme"); } catch { return null; } };
  const keep = (name) => { try { localStorage.setItem("perdure-theme", name); } catch { /* for this time alone */ } };
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Switch to ${theme.textContent.toLowerCase()} colors`); };
  const kept = recall();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; keep(root.dataset.theme); label(); });
  system.addEventListener("change", label);

  // --- tables: rows are sorted within their group; figures begin with the highest, names with the first ---
  const value = (row, place) => {
    const cell = row.cells[place];
    const number = cell.dataset.sort;
    return number ? Number(number) : cell.textContent.trim();
  };
  const compare = (one, other) => {
    if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
    return typeof one === "number" ? 1 : -1;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const first = head.classList.contains("figure") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") === first ? other : first;
        for (const one of heads) if (one.hasAttribute("aria-sort")) one.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        for (const body of table.tBodies) {
          const rows = [...body.rows].sort((a, b) => sign * compare(value(a, place), value(b, place)));
          body.append(...rows);
        }
        said.textContent = `Sorted by ${button.textContent}, ${order}`;
      });
    });
  }

  // --- copying ---
  const copyText = async (code) => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
  };
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await copyText(button.parentElement.querySelector("code"));
      button.textContent = "Copied";
      said.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // --- what is folded opens where a link leads, and all of it on paper ---
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")].filter((one) => !one.closest(".forms"));
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
