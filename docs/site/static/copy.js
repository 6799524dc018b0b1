// A button on each block of code that copies it; of a block with output the commands alone, which begin with "$ ".
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = block.querySelector("pre").textContent;
      const commands = text.split("\n").filter((line) => line.startsWith("$ "));
      await navigator.clipboard.writeText(commands.length ? commands.map((line) => line.slice(2)).join("\n") + "\n" : text);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }
});
