"""What a WORKSPACE that uses this library calls; nothing is downloaded.

    load("@comptrain//bazel:repositories.bzl", "comptrain_repositories")
    comptrain_repositories()
"""

load("//bazel:cuda.bzl", "cuda_repository")
load("//bazel:stubs.bzl", "stub_repositories")
load("//bazel:tensorflow.bzl", "tensorflow_repository")

def comptrain_repositories():
    """Declares @local_tensorflow and @local_cuda, and what an old, offline Bazel lacks."""
    existing = native.existing_rules()
    if "local_tensorflow" not in existing:
        tensorflow_repository(name = "local_tensorflow")
    if "local_cuda" not in existing:
        cuda_repository(name = "local_cuda")

    # Bazel 6 and newer bring these along.
    if not hasattr(native, "package_relative_label"):
        stub_repositories(existing)
