// SPDX-License-Identifier: Apache-2.0
#include "actors/cli/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace baton {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void BenchReport::Print() const {
  std::printf("read probe of %s: %.1f GB/s (median)\n", probe_name.c_str(),
              Median(probe) / 1e9);
  std::printf("%7s %6s %16s %16s %12s %14s %15s\n", "stages", "batch",
              "prompt tok/s", "decode tok/s", "GB/s", "of read probe",
              "host us/visit");
  for (const BenchRow& row : rows) {
    const double speed = Median(row.decode);
    std::printf("%7d %6d %16.1f %16.2f %12.2f %14.3f %15.1f\n", row.stages,
                row.batch, Median(row.prompt), speed,
                row.step_bytes * speed / row.batch / 1e9,
                Median(row.decode_share), Median(row.host_us));
  }
  for (const auto& [name, ratio] : Ratios()) {
    std::printf("%s: %.3f\n", name.c_str(), ratio);
  }
}

std::vector<std::pair<std::string, double>> BenchReport::Ratios() const {
  std::vector<std::pair<std::string, double>> ratios;
  const auto add = [&](const char* what, const BenchRow& row,
                       const BenchRow& base, const std::vector<double>& speed,
                       const std::vector<double>& base_speed) {
    std::vector<double> rounds;
    for (size_t i = 0; i < speed.size(); ++i) {
      rounds.push_back(speed[i] / base_speed[i]);
    }
    ratios.emplace_back(
        fmt::format("{}: {} stages, {} sequences / {} stage(s), {}", what,
                    row.stages, row.batch, base.stages, base.batch),
        Median(std::move(rounds)));
  };
  for (const BenchRow& row : rows) {
    for (const BenchRow& base : rows) {
      if (base.stages != rows.front().stages || row.stages == base.stages) {
        continue;
      }
      if (row.batch == base.batch) {
        add("prompt", row, base, row.prompt, base.prompt);
      }
      if (row.batch == base.batch ||
          row.batch * base.stages == base.batch * row.stages) {
        add("decode", row, base, row.decode, base.decode);
      }
    }
  }
  return ratios;
}

Status BenchReport::Write(const std::string& path) const {
  nlohmann::json json = setup;
  json["probe_bytes_per_s"] = probe;
  json["load"] = load;
  for (const BenchRow& row : rows) {
    json["rows"].push_back({{"stages", row.stages},
                            {"batch", row.batch},
                            {"prompt_tokens_per_s", row.prompt},
                            {"decode_tokens_per_s", row.decode},
                            {"decode_share_of_probe", row.decode_share},
                            {"host_us_per_visit", row.host_us}});
  }
  for (const auto& [name, ratio] : Ratios()) json["ratios"][name] = ratio;
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  if (!file) return Unavailable("cannot write {}", path);
  return OkStatus();
}

}  // namespace baton
