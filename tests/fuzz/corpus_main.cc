// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over each file of a folder: good_* must be accepted, bad_*
// refused, and others (found by the fuzzer) merely survived.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  int failed = files.empty() ? 1 : 0;
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string();
    std::printf("%s\n", name.c_str());
    std::fflush(stdout);  // so that a crash shows the file
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in),
                            std::istreambuf_iterator<char>()};
    const bool accepted = baton::fuzz::Run(std::as_bytes(std::span(bytes)));
    if ((name.starts_with("good_") && !accepted) ||
        (name.starts_with("bad_") && accepted)) {
      std::printf("  wrong: %s\n", accepted ? "accepted" : "refused");
      ++failed;
    }
  }
  std::printf("%zu files, %d wrong\n", files.size(), failed);
  return failed == 0 ? 0 : 1;
}
