// Each cell of a table of more than three columns has its column's head: on a phone fits.css shows a row as a block.
for (const table of document.querySelectorAll("article table")) {
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent)
  if (heads.length < 4) continue
  table.dataset.wide = ""
  for (const row of table.tBodies[0].rows)
    [...row.cells].forEach((cell, at) => heads[at] && (cell.dataset.head = heads[at]))
}
