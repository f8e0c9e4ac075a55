"""The repositories of repositories.bzl for bzlmod. In a file of its own: Bazel 4 cannot read it."""

load("//bazel:cuda.bzl", "cuda_repository")
load("//bazel:tensorflow.bzl", "tensorflow_repository")

def _local_impl(_ctx):
    tensorflow_repository(name = "local_tensorflow")
    cuda_repository(name = "local_cuda")

local = module_extension(implementation = _local_impl)
