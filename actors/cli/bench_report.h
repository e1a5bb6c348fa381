// SPDX-License-Identifier: Apache-2.0
// What `baton bench` has measured, as a table and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace baton {

// Not of nothing.
[[nodiscard]] double Median(std::vector<double> values);

// A pipeline with so many sequences in flight; a value of each round.
struct BenchRow {
  int stages = 0;
  int batch = 0;
  double step_bytes = 0;               // that a decode step moves at least
  std::vector<double> prompt, decode;  // tokens a second
  std::vector<double> decode_share;    // of the read probe of the same round
  std::vector<double> host_us;         // of a stage's thread for a visit
};

struct BenchReport {
  nlohmann::json setup;  // of the run: devices, dtype and so on
  nlohmann::json load = nlohmann::json::array();  // of each pipeline
  std::string probe_name;
  std::vector<double> probe;  // bytes a second
  std::vector<BenchRow> rows;

  void Print() const;
  // Unavailable: the file cannot be written.
  [[nodiscard]] Status Write(const std::string& path) const;
  // Throughput against the first row's stage count, of the same rounds: with as
  // many sequences, and with as many for every stage.
  [[nodiscard]] std::vector<std::pair<std::string, double>> Ratios() const;
};

}  // namespace baton
