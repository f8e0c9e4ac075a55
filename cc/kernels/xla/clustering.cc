// Keeps the ops out of the clusters that XLA's auto-clustering makes of a
// graph.
//
// Their XLA lowerings have streams and masks of another layout than the
// executor's kernels, chosen where a whole function is compiled
// (jit_compile=True), whose body no such pass sees. A cluster may hold the op
// that writes a stream and not the one that reads it.
#include "absl/strings/match.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace comptrain {
namespace {

// Before TensorFlow's pass that chooses the nodes of clusters: 10.
constexpr int kPhase = 0;

class LeaveOutOfClusters : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr) return absl::OkStatus();
    for (tensorflow::Node* node : (*options.graph)->op_nodes()) {
      if (absl::StartsWith(node->type_string(), "Comptrain>")) {
        node->ClearAttr("_XlaCompile");
        node->AddAttr("_XlaCompile", false);
      }
    }
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(
    tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, kPhase,
    LeaveOutOfClusters);

}  // namespace
}  // namespace comptrain
