/* SPDX-License-Identifier: BSD-3-Clause
 *
 * html.c: the frame of a page; see html.h. */
#include "io/html.h"

void html_text(const char *text, FILE *stream) {
    for (; *text; ++text) switch (*text) {
        case '&': fputs("&amp;", stream); break;
        case '<': fputs("&lt;", stream); break;
        case '>': fputs("&gt;", stream); break;
        case '"': fputs("&quot;", stream); break;
        default: fputc(*text, stream);
        }
}

static const char style[] =
    ":root { color-scheme: light dark; --line: #8886; }\n"
    "body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 1.5rem auto; padding: 0 1rem; }\n"
    "dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }\n"
    "dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }\n"
    "svg { width: 100%; max-width: 60rem; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; "
    "}\n"
    ".scroll { overflow-x: auto; }\n"
    "table { border-collapse: collapse; } td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--line); }\n"
    "td { white-space: nowrap; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }\n"
    "th { text-align: left; cursor: pointer; } th[aria-sort=ascending]::after { content: ' \\2191'; }\n"
    "th[aria-sort=descending]::after { content: ' \\2193'; }\n";

/* Cells say what they sort by in data-v; without a number there, by the text. Cells of no value stay last. */
static const char script[] =
    "for (const head of document.querySelectorAll('th')) head.onclick = () => {\n"
    "  const down = head.getAttribute('aria-sort') == 'ascending', at = head.cellIndex;\n"
    "  const body = head.closest('table').tBodies[0], rows = [...body.rows];\n"
    "  const key = row => row.cells[at].dataset.v;\n"
    "  const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;\n"
    "  rows.sort((a, b) => key(a) === '' ? 1 : key(b) === '' ? -1 : (down ? -1 : 1) * order(key(a), key(b)));\n"
    "  for (const other of head.parentNode.cells) other.removeAttribute('aria-sort');\n"
    "  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');\n"
    "  body.append(...rows);\n"
    "};\n";

void html_begin(const char *title, FILE *stream) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" "
          "href=\"data:,\">\n<title>",
          stream);
    html_text(title, stream);
    fprintf(stream, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", style);
    html_text(title, stream);
    fputs("</h1>\n", stream);
}

void html_end(FILE *stream) { fprintf(stream, "<script>\n%s</script>\n</body>\n</html>\n", script); }

void html_fact(const char *name, const char *value, FILE *stream) {
    fputs("<dt>", stream);
    html_text(name, stream);
    fputs("</dt><dd>", stream);
    html_text(value, stream);
    fputs("</dd>\n", stream);
}
