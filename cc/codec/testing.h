// The little a codec test needs: CHECK counts and reports, Finish() closes the
// run with a line "N passed, N failed" and gives main() its exit status.
#ifndef TF_COMPTRAIN_CC_CODEC_TESTING_H_
#define TF_COMPTRAIN_CC_CODEC_TESTING_H_

#include <cstdint>
#include <cstdio>
#include <string>

namespace comptrain {
namespace testing {

struct Counts {
  int64_t passed = 0;
  int64_t failed = 0;
};

inline Counts& Total() {
  static Counts counts;
  return counts;
}

// Returns ok, so that a test can stop early. what: printed when it fails.
inline bool Check(bool ok, const char* file, int line, const char* expression,
                  const std::string& what) {
  ++(ok ? Total().passed : Total().failed);
  if (!ok && Total().failed <= 50) {
    std::fprintf(stderr, "%s:%d: %s is false %s\n", file, line, expression,
                 what.c_str());
  }
  return ok;
}

inline int Finish() {
  std::printf("%lld passed, %lld failed\n",
              static_cast<long long>(Total().passed),
              static_cast<long long>(Total().failed));
  return Total().failed == 0 && Total().passed > 0 ? 0 : 1;
}

}  // namespace testing
}  // namespace comptrain

#define CHECK(ok) CHECK_MSG(ok, "")
#define CHECK_MSG(ok, what) \
  ::comptrain::testing::Check((ok), __FILE__, __LINE__, #ok, (what))

#endif  // TF_COMPTRAIN_CC_CODEC_TESTING_H_
