// The text on the page: segments with their times, words that play, the n best hypotheses.

import { clock } from "./files.js";
import { t } from "./i18n.js";

const UNSURE = 0.5; // a word of less confidence is marked

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

export class Transcript {
  constructor({ list, partial, nbest }, playFrom) {
    Object.assign(this, { list, partial, nbest, playFrom });
    this.clear();
    list.addEventListener("click", ({ target }) => this.choose(target));
    list.addEventListener("keydown", (event) => this.onKey(event));
  }

  clear() {
    this.list.replaceChildren();
    this.words = [];
    this.guess("");
    this.nbest.hidden = true;
  }

  /** The text that is not final yet. */
  guess(text) {
    this.partial.textContent = text;
    this.partial.hidden = !text;
  }

  add(segment) {
    if (!segment.text) return;
    const text = element("span", "text", "");
    for (const word of segment.tokens ? segment.words : [segment]) {
      const span = element("span", "word", word.text);
      span.setAttribute("role", "button");
      span.tabIndex = this.words.length ? -1 : 0; // one stop for the tab key; arrows go on
      if (word.confidence != null) {
        span.title = t("{0}, confidence {1} %", clock(word.start), Math.round(100 * word.confidence));
        span.classList.toggle("unsure", word.confidence < UNSURE);
      }
      this.words.push({ span, start: word.start, end: word.end });
      text.append(span);
    }
    this.addRow(element("span", "time", clock(segment.start)), text);
  }

  addNothing() {
    this.addRow(element("span", "nothing", t("No speech.")));
  }

  addRow(...parts) {
    const row = document.createElement("li");
    row.append(...parts);
    this.list.append(row);
  }

  addHypotheses(nbest) {
    this.nbest.hidden = nbest.length < 2;
    const rows = nbest.map(({ text, score }) => {
      const row = document.createElement("tr");
      row.append(element("td", "", text || t("(nothing)")), element("td", "number", score.toFixed(2)));
      return row;
    });
    this.nbest.querySelector("tbody").replaceChildren(...rows);
  }

  /** Marks the word that is played at a time, in seconds. */
  mark(seconds) {
    const word = this.words.find(({ start, end }) => start <= seconds && seconds < end);
    const marked = seconds > 0 ? word?.span : null;
    if (marked === this.marked) return;
    this.marked?.classList.remove("now");
    marked?.classList.add("now");
    this.marked = marked;
  }

  choose(target) {
    const word = this.words.find(({ span }) => span === target);
    if (!word) return;
    this.focus(word);
    this.playFrom(word.start);
  }

  focus(word) {
    for (const { span } of this.words) span.tabIndex = span === word.span ? 0 : -1;
    word.span.focus();
  }

  onKey(event) {
    const here = this.words.findIndex(({ span }) => span === event.target);
    const targets = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: this.words.length - 1 };
    if (event.key === "Enter" || event.key === " ") this.choose(event.target);
    else if (this.words[targets[event.key]]) this.focus(this.words[targets[event.key]]);
    else return;
    event.preventDefault();
  }
}
