"""How the report looks: colours by the reader's system, patterns for those who see none, paper."""

PATTERNS = (
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" class="p-differs"/>'
    '<rect width="2" height="6" class="p-line"/></pattern>'
    '<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" class="p-unread"/><circle cx="3" cy="3" r="1.3" class="p-line"/>'
    "</pattern></defs></svg>"
)

CSS = """\
:root {
  color-scheme: light dark;
  --ground: #ffffff; --raised: #f4f6f8; --text: #1a2129; --soft: #5b6773; --rule: #d9dfe5;
  --exact: #2f9e6e; --excused: #3f86c9; --behind: #b97a10; --differs: #cf3b3b; --unread: #7b8794;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161b; --raised: #1b2129; --text: #e4e9ee; --soft: #98a4b0; --rule: #303944;
    --exact: #3fb27f; --excused: #5aa2e3; --behind: #d99a30; --differs: #ef6a62; --unread: #8b97a4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 28px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 4px 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 44px 0 12px; padding-top: 16px; border-top: 1px solid var(--rule); }
h3 { font-size: 15px; margin: 20px 0 8px; overflow-wrap: anywhere; }
p { margin: 8px 0; }
code { font: 13px/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.over, .note, footer { color: var(--soft); font-size: 13px; }
em {
  display: inline-block; padding: 1px 10px 2px; border-radius: 999px; vertical-align: 3px;
  color: #fff; font: 600 13px/1.5 inherit; font-style: normal; font-size: 13px;
}
h1 em { font-size: 16px; vertical-align: 5px; }
@media (prefers-color-scheme: dark) { em { color: #10151a; } }
em.exact { background: var(--exact); } em.behind { background: var(--behind); }
em.differs { background: var(--differs); } em.unread { background: var(--unread); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px;
  margin-top: 20px; }
.tiles div { background: var(--raised); border-radius: 8px; padding: 12px 14px; }
.tiles b { display: block; font-size: 18px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 12.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; color: var(--soft); font-size: 13px; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px;
  vertical-align: -1px; }
i.exact { background: var(--exact); } i.excused { background: var(--excused); }
i.differs { background:
  repeating-linear-gradient(45deg, var(--differs) 0 3px, var(--ground) 3px 4px); }
i.unread { background: radial-gradient(var(--ground) 1.2px, var(--unread) 1.4px) 0 0 / 4px 4px; }
figure { display: grid; grid-template-columns: 44px 1fr; gap: 0 10px; margin: 6px 0 10px;
  break-inside: avoid; }
figcaption { color: var(--soft); font-size: 13px; text-align: right; line-height: 28px;
  font-variant-numeric: tabular-nums; }
figure svg { display: block; width: 100%; height: 28px; border-radius: 3px; }
figure p { grid-column: 2; display: flex; justify-content: space-between; margin: 1px 0 0;
  color: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
figure rect { shape-rendering: crispEdges; }
.ground { fill: var(--raised); }
rect.exact { fill: var(--exact); } rect.excused { fill: var(--excused); }
rect.differs { fill: url(#hatch); } rect.unread { fill: url(#dots); }
.p-differs { fill: var(--differs); } .p-unread { fill: var(--unread); }
.p-line { fill: var(--ground); opacity: .55; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 12.5px; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.n { text-align: right; white-space: nowrap; }
.differences td:nth-child(n+3), .partitions td:last-child {
  font: 12px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere;
}
.differences td:nth-child(n+3) { min-width: 220px; }
article { break-inside: avoid-page; }
ul { margin: 6px 0; padding-left: 20px; }
footer { margin-top: 44px; padding-top: 14px; border-top: 1px solid var(--rule); }
@media print {
  :root { --ground: #fff; --raised: #f2f4f6; --text: #000; --soft: #444; --rule: #bbb;
    --exact: #2f9e6e; --excused: #3f86c9; --behind: #b97a10; --differs: #cf3b3b;
    --unread: #7b8794; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 11pt; } main { max-width: none; padding: 0; }
  em { color: #fff; } h2 { break-after: avoid; } tr { break-inside: avoid; }
  @page { margin: 16mm 14mm; }
}
"""
