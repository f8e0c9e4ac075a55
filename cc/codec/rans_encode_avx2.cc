#include "cc/codec/rans_chunk.h"
namespace comptrain {
namespace rans {
ChunkKernels Avx2ChunkKernels(DType d, bool m) { return ScalarChunkKernels(d, m); }
}
}
