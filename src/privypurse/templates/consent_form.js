"use strict";
const form = document.getElementById("consent");

function recordOf(columns, cells) {
  const quoted = cells.map((cell) => '"' + cell.replaceAll('"', '""') + '"');
  return columns + "\r\n" + quoted.join(",") + "\r\n";
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const chosen = new FormData(form).get("epsilon");
  const person = document.getElementById("person").value.trim();
  const until = document.getElementById("valid-until").value;
  const cells = [person, chosen, form.dataset.purpose, until, form.dataset.recordedBy];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([recordOf(form.dataset.columns, cells)], { type: "text/csv" }));
  link.download = "consent.csv";
  link.click();
  document.getElementById("saved").textContent = "Saved as consent.csv, with your id and ε = " + chosen + ".";
});
