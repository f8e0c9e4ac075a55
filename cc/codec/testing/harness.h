// The smallest test harness that works: counted checks and a last line
// `N passed, N failed`. A test program ends with `return FinishTests();`.
#pragma once

#include <atomic>
#include <cstdio>
#include <sstream>
#include <string>

namespace comptrain {

struct TestCounts {
  std::atomic<long> passed{0}, failed{0};
};

inline TestCounts& Counts() {
  static TestCounts counts;
  return counts;
}

// Counts a check; prints the first failures, with what the caller adds.
inline bool CountCheck(bool ok, const char* file, int line, const char* what,
                       const std::string& detail = "") {
  if (ok) {
    ++Counts().passed;
  } else if (++Counts().failed <= 50) {
    std::printf("%s:%d: %s %s\n", file, line, what, detail.c_str());
  }
  return ok;
}

// Prints the totals and returns the exit status of the program. A program
// that checked nothing has failed.
inline int FinishTests() {
  const TestCounts& c = Counts();
  std::printf("%ld passed, %ld failed\n", c.passed.load(), c.failed.load());
  return c.failed == 0 && c.passed > 0 ? 0 : 1;
}

template <class A, class B>
bool CountEqual(const A& a, const B& b, const char* file, int line,
                const char* what) {
  if (a == b) return CountCheck(true, file, line, what);
  std::ostringstream detail;
  detail << "(" << a << " != " << b << ")";
  return CountCheck(false, file, line, what, detail.str());
}

}  // namespace comptrain

// All evaluate to whether the check held.
#define CHECK(condition) \
  ::comptrain::CountCheck((condition), __FILE__, __LINE__, #condition)
// message: a std::string that says which case it was.
#define CHECK_MSG(condition, message) \
  ::comptrain::CountCheck((condition), __FILE__, __LINE__, #condition, message)
#define CHECK_EQ(a, b) \
  ::comptrain::CountEqual((a), (b), __FILE__, __LINE__, #a " == " #b)
