// {fmt} compiled once, instead of by every file that formats (FMT_HEADER_ONLY costs 4 s a file).
// Which {fmt} it is decides the include path: LibTorch brings one of its own, so modules with and
// without torch have each their own copy of this file.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
