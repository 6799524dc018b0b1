#include "lab/report/page.h"

#include <fmt/format.h>

#include "lab/report/markup.h"
#include "lab/report/style.h"

namespace demi::report {
namespace {

constexpr ChartSize kHalf = {540, 300};
constexpr ChartSize kFull = {1120, 340};  // a chart that stands alone
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
