#include "demi/core/flush_subnormals.h"

#include <omp.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace demi {
namespace {

using Word = unsigned long;

// The processor's floating point control word of the calling thread, and its bits that flush.
#if defined(__x86_64__)
constexpr Word kFlush = 0x8040;  // FTZ, results; DAZ, operands
Word control_word() { return _mm_getcsr(); }
void set_control_word(Word word) { _mm_setcsr(static_cast<unsigned>(word)); }
#elif defined(__aarch64__)
constexpr Word kFlush = 1UL << 24;  // FZ
Word control_word() {
  Word word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
void set_control_word(Word word) { __asm__ volatile("msr fpcr, %0" ::"r"(word)); }
#else
constexpr Word kFlush = 0;
Word control_word() { return 0; }
void set_control_word(Word) {}
#endif

}  // namespace

bool flushes_subnormals() { return kFlush != 0 && (control_word() & kFlush) == kFlush; }

FlushSubnormals::FlushSubnormals(bool on) {
  if (!on) return;
  before_.assign(static_cast<std::size_t>(omp_get_max_threads()), control_word());
#pragma omp parallel
  {
    const Word word = control_word();
    before_[static_cast<std::size_t>(omp_get_thread_num())] = word;
    set_control_word(word | kFlush);
  }
}

// Threads that were made meanwhile have the word of the one that made them; GCC's runtime ends them
// with the first parallel region that needs fewer, which is this one.
FlushSubnormals::~FlushSubnormals() {
  if (before_.empty()) return;
#pragma omp parallel num_threads(before_.size())
  set_control_word(before_[static_cast<std::size_t>(omp_get_thread_num())]);
}

}  // namespace demi
