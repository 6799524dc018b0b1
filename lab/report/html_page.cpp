#include "lab/report/html_page.h"

#include <fmt/format.h>

#include "lab/report/markup.h"
#include "lab/report/palette.h"

namespace demi::report {
namespace {

constexpr ChartSize kHalf = {540, 300};
constexpr ChartSize kFull = {1120, 340};  // a chart that is alone in its row
constexpr ChartSize kSmall = {358, 290};  // a phone's width, less the margins

std::string element(std::string_view tag, std::string_view text) {
  return text.empty() ? "" : fmt::format("<{0}>{1}</{0}>\n", tag, escape_html(text));
}

template <typename Drawing>
std::string both_sizes(const Drawing& drawing, ChartSize size) {
  return "<figure>\n<div class=\"wide\">\n" + to_svg(drawing, size) +
         "</div>\n<div class=\"small\" hidden>\n" + to_svg(drawing, kSmall) + "</div>\n</figure>\n";
}

struct ToHtml {
  ChartSize size;

  std::string operator()(const Paragraph& paragraph) const { return element("p", paragraph.text); }
  std::string operator()(const Table& table) const { return to_html(table); }
  std::string operator()(const Chart& chart) const { return both_sizes(chart, size); }
  std::string operator()(const StackedBars& bars) const { return both_sizes(bars, size); }
  std::string operator()(const ExponentBars& bars) const { return both_sizes(bars, size); }
  std::string operator()(const Code& code) const {
    return "<pre tabindex=\"0\">" + escape_html(code.text) + "</pre>\n";
  }

  std::string operator()(const Highlights& highlights) const {
    std::string out = "<dl class=\"highlights\">\n";
    for (const Highlights::Figure& figure : highlights.figures) {
      out += fmt::format(
          "<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"detail\">{}</dd></div>\n",
          escape_html(figure.name), escape_html(figure.value), escape_html(figure.detail));
    }
    return out + "</dl>\n";
  }

  std::string operator()(const Facts& facts) const {
    std::string out = element("h3", facts.title) + "<dl class=\"facts\">\n";
    for (const auto& [name, value] : facts.rows) {
      out += "<dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd>\n";
    }
    return out + "</dl>\n";
  }
};

bool is_chart(const Block& block) {
  return std::holds_alternative<Chart>(block) || std::holds_alternative<StackedBars>(block) ||
         std::holds_alternative<ExponentBars>(block);
}

std::string section_html(const Section& section) {
  std::string out = "<section>\n" + element("h2", section.title);
  const std::vector<Block>& blocks = section.blocks;
  for (std::size_t first = 0; first < blocks.size();) {
    if (!is_chart(blocks[first])) {
      out += std::visit(ToHtml{kHalf}, blocks[first++]);
      continue;
    }
    std::size_t last = first;
    while (last < blocks.size() && is_chart(blocks[last])) ++last;
    const ToHtml drawn{last - first == 1 ? kFull : kHalf};
    out += "<div class=\"charts\">\n";
    for (; first < last; ++first) out += std::visit(drawn, blocks[first]);
    out += "</div>\n";
  }
  return out + "</section>\n";
}

/// Colours of everything but the runs: paper, text, text of second rank, hairlines, raised
/// surfaces.
constexpr const char* kLightSurface =
    "--bg:#ffffff;--fg:#1d232b;--soft:#5b6470;--line:#e3e6ea;--axis:#6b7480;--mark:#a9b0ba;--card:#"
    "f6f7f9;--on:#ffffff";
constexpr const char* kDarkSurface =
    "--bg:#14171c;--fg:#e6e9ee;--soft:#a2abb8;--line:#2b313a;--axis:#7d8794;--mark:#59626e;--card:#"
    "1c2128;--on:#14171c";

constexpr const char* kPage = R"css(
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:44px 28px 64px}
header{margin-bottom:30px}
h1{margin:0;font-size:1.8em;line-height:1.25;font-weight:650;letter-spacing:-.012em;overflow-wrap:anywhere}
h2{margin:52px 0 16px;font-size:1.2em;line-height:1.3;font-weight:620;overflow-wrap:anywhere}
h3{margin:0 0 8px;font-size:.93em;font-weight:600}
header .subtitle{margin:6px 0 0;color:var(--soft);overflow-wrap:anywhere}
p{margin:0 0 12px;max-width:75ch;overflow-wrap:anywhere}
.highlights{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:14px;margin:0 0 28px}
.highlights div{background:var(--card);border-radius:10px;padding:16px 18px 14px}
.highlights dt{color:var(--soft);font-size:.87em}
.highlights dd{margin:0}
.highlights .value{font-size:1.75em;line-height:1.3;font-weight:620;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.highlights .detail{color:var(--soft);font-size:.87em}
figure{margin:0 0 28px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{caption-side:top;text-align:left;font-size:.93em;font-weight:600;padding:0 0 8px}
th,td{padding:9px 0 9px 22px;text-align:right;white-space:nowrap;vertical-align:bottom}
th:first-child,td:first-child{padding-left:0;text-align:left}
th.left,td.left{text-align:left}
td.text{white-space:normal;min-width:24ch;max-width:80ch;overflow-wrap:anywhere}
tr:has(td.text)>*{vertical-align:top}
thead th{color:var(--soft);font-size:.87em;line-height:1.35;font-weight:500;border-bottom:1px solid var(--axis);white-space:normal}
thead .unit{display:block}
tbody th{font-weight:600}
tbody tr+tr>*{border-top:1px solid var(--line)}
figcaption{margin-top:10px;color:var(--soft);font-size:.87em}
figcaption p{margin:0 0 4px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:36px 44px;margin:0 0 28px}
.charts figure{margin:0;min-width:0}
svg.chart{display:block;width:100%;height:auto;overflow:visible}
svg .head,svg text{fill:var(--fg)}
svg text.soft{fill:var(--soft)}
svg text.on{fill:var(--on)}
svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--axis)}
svg .mark{stroke:var(--mark)}
svg text{font-variant-numeric:tabular-nums}
.small svg.chart{max-width:420px}
.small{display:none}
.facts{display:grid;grid-template-columns:minmax(120px,max-content) 1fr;margin:0 0 28px}
.facts dt,.facts dd{margin:0;padding:6px 0;border-top:1px solid var(--line);overflow-wrap:anywhere}
.facts dt{color:var(--soft);padding-right:28px}
.facts dt:first-of-type,.facts dd:first-of-type{border-top:0}
.facts dd{font-variant-numeric:tabular-nums}
pre{margin:0 0 28px;padding:14px 16px;background:var(--card);border-radius:10px;overflow-x:auto;font:.87em/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
footer{margin-top:56px;padding-top:14px;border-top:1px solid var(--line);color:var(--soft);font-size:.87em;overflow-wrap:anywhere}
:focus-visible{outline:2px solid var(--r1);outline-offset:2px}
@media (max-width:560px){
main{padding:26px 16px 44px}
h1{font-size:1.5em}
h2{margin-top:40px}
th,td{padding-left:18px}
th:first-child,td:first-child{position:sticky;left:0;padding-right:4px;background:var(--bg)}
.wide{display:none}
.small{display:block}
.facts{grid-template-columns:minmax(96px,36%) 1fr}
.facts dt{padding-right:16px}
.highlights{grid-template-columns:1fr 1fr;gap:10px}
.highlights div{padding:12px 14px}
.highlights .value{font-size:1.4em}
}
@media print{
@page{margin:16mm 14mm}
body{font-size:10.5px}
main{max-width:none;padding:0}
h2{margin:24px 0 10px;break-after:avoid}
figure,.highlights{break-inside:avoid}
.scroll{overflow:visible}
th,td{padding:5px 0 5px 10px}
.charts{grid-template-columns:1fr 1fr;gap:22px 28px}
.charts figure:only-child{grid-column:1/-1}
.charts figure:not(:only-child) .wide{display:none}
.charts figure:not(:only-child) .small{display:block}
.small svg.chart{max-width:none}
.highlights{grid-template-columns:repeat(auto-fit,minmax(110px,1fr))}
.highlights div{padding:10px 12px}
.highlights div,pre{border:1px solid var(--line)}
.highlights .value{font-size:1.6em}
.facts dt,.facts dd{padding:3px 0}
*{print-color-adjust:exact}
}
)css";

std::string runs(const Palette& palette) {
  std::string out;
  for (std::size_t i = 0; i < palette.runs.size(); ++i)
    out += fmt::format(";--r{}:{}", i + 1, palette.runs[i]);
  return out;
}

std::string run_classes() {
  std::string out;
  for (std::size_t i = 1; i <= kLight.runs.size(); ++i) {
    out += fmt::format(
        "svg .s{0}{{stroke:var(--r{0})}}svg .f{0},svg .m{0},svg text.t{0}{{fill:var(--r{0})}}\n",
        i);
  }
  return out;
}

/// The page's style sheet, with the palette of palette.h filled in.
std::string style_sheet() {
  const std::string light = kLightSurface + runs(kLight);
  const std::string dark = kDarkSurface + runs(kDark);
  return fmt::format(
      ":root{{{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}{}{}", light, dark,
      kPage, run_classes());
}

}  // namespace

std::string to_html(const Page& page) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"generator\" content=\"demi\">\n";
  out += element("title", page.title.empty() ? "demi" : page.title);
  out += "<style>\n" + style_sheet() + "</style>\n</head>\n<body>\n<main>\n<header>\n";
  out += element("h1", page.title);
  if (!page.subtitle.empty())
    out += "<p class=\"subtitle\">" + escape_html(page.subtitle) + "</p>\n";
  out += "</header>\n";
  for (const Section& section : page.sections) out += section_html(section);
  out += element("footer", page.footer);
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace demi::report
