// SPDX-License-Identifier: Apache-2.0
// bf16 matmul against the machine: one row against a read probe (over weights
// that no cache holds), many rows against oneDNN with packed weights. All
// contestants take turns in one process, because speed drifts between runs;
// the ratios are what counts.
//
//   kernel_bench [--json FILE] [--threads N] [--rounds N] [--matrices N]
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dnnl.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/ops/matmul.h"
#include "kernels/registry.h"
#include "runtime/base/check.h"
#include "runtime/base/read_probe.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/tensor.h"

namespace baton {
namespace {

struct Options {
  std::string json;
  int threads = 1;
  int rounds = 7;
  int matrices = 48;
};

struct Line {
  std::string name;
  std::string unit;
  double ours;
  double other;
  double ratio;
};

// Time of this thread alone where it does all the work, so that others on the
// machine disturb less; else wall time.
clockid_t g_clock = CLOCK_MONOTONIC;

double Seconds() {
  timespec now;
  clock_gettime(g_clock, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Body>
double Timed(const Body& body) {
  const double begin = Seconds();
  body();
  return Seconds() - begin;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Tensor RandomBF16(int64_t rows, int64_t columns, uint32_t seed) {
  Tensor tensor = Tensor::AllocateHost(DType::kBF16, {rows, columns}).value();
  auto* data = reinterpret_cast<uint16_t*>(tensor.view().data());
  uint32_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < rows * columns; ++i) {
    state = state * 1664525u + 1013904223u;
    // Sign, an exponent around 2^-3, seven random bits.
    data[i] = static_cast<uint16_t>((state >> 16 & 0x807f) | 0x3e00);
  }
  return tensor;
}

// oneDNN's matmul with weights in the layout it asks for.
class Library {
 public:
  Library(int64_t rows, int64_t n, int64_t k)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Tag = dnnl::memory::format_tag;
    using Type = dnnl::memory::data_type;
    const dnnl::memory::desc x({rows, k}, Type::bf16, Tag::ab);
    const dnnl::memory::desc w({k, n}, Type::bf16, Tag::any);
    const dnnl::memory::desc y({rows, n}, Type::bf16, Tag::ab);
    primitive_desc_ =
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), engine_);
    matmul_ = dnnl::matmul(primitive_desc_);
    plain_ = dnnl::memory::desc({k, n}, Type::bf16, Tag::ba);
  }

  void AddWeight(const Tensor& weight) {
    dnnl::memory from(plain_, engine_, weight.view().data());
    packed_.emplace_back(primitive_desc_.weights_desc(), engine_);
    dnnl::reorder(from, packed_.back()).execute(stream_, from, packed_.back());
    stream_.wait();
  }

  void Run(size_t weight, const Tensor& x, const Tensor& y) {
    dnnl::memory from(primitive_desc_.src_desc(), engine_, x.view().data());
    dnnl::memory to(primitive_desc_.dst_desc(), engine_, y.view().data());
    matmul_.execute(stream_, {{DNNL_ARG_SRC, from},
                              {DNNL_ARG_WEIGHTS, packed_[weight]},
                              {DNNL_ARG_DST, to}});
    stream_.wait();
  }
  [[nodiscard]] size_t weights() const { return packed_.size(); }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul::primitive_desc primitive_desc_;
  dnnl::matmul matmul_;
  dnnl::memory::desc plain_;
  std::vector<dnnl::memory> packed_;
};

class Bench {
 public:
  Bench(const Options& options, CpuIsa isa)
      : options_(options),
        device_(NewCpuDevice(options.threads)),
        stream_(device_->NewStream().value()) {
    RegisterCpuKernels(registry_, isa);
    matmul_ = registry_.Find<Matmul>(DeviceKind::kCpu, DType::kBF16).value();
    pack_ = registry_.Find<PackMatrix>(DeviceKind::kCpu, DType::kBF16).value();
  }

  std::vector<Line> Run() {
    std::vector<Line> lines;
    for (const int64_t side : {2048, 4096}) {
      Load(side);
      VerifyRowInvariance();
      lines.push_back(OneRow());
      for (const int64_t rows : {128, 512}) lines.push_back(ManyRows(rows));
    }
    return lines;
  }

 private:
  void Load(int64_t side) {
    side_ = side;
    plain_.clear();
    packed_.clear();
    const int64_t count =
        options_.matrices * (int64_t{4096} * 4096) / side / side;
    for (int64_t i = 0; i < count; ++i) {
      Tensor plain = RandomBF16(side, side, static_cast<uint32_t>(i));
      packed_.push_back(Pack(plain));
      if (plain_.size() < static_cast<size_t>(count) / 3) {
        plain_.push_back(std::move(plain));
      }
    }
  }

  Buffer Pack(const Tensor& weight) {
    const int64_t bytes =
        PackedBytes(side_, side_, MatmulLeaves(side_), DType::kBF16);
    Buffer packed = AllocateHostBuffer(bytes).value();
    std::memset(packed.data(), 0, static_cast<size_t>(bytes));
    BATON_CHECK(pack_({.rows = weight.view(),
                       .first_row = 0,
                       .packed = packed.data(),
                       .dtype = DType::kBF16,
                       .n = side_,
                       .k = side_,
                       .leaves = MatmulLeaves(side_)},
                      *stream_)
                    .ok());
    return packed;
  }

  void Multiply(size_t matrix, ConstView x, View y) {
    const PackedMatrix weight = {packed_[matrix].data(), DType::kBF16, side_,
                                 side_, MatmulLeaves(side_)};
    BATON_CHECK(matmul_({.x = x, .weight = weight, .out = y}, *stream_).ok());
  }

  void VerifyRowInvariance() {
    const Tensor x = RandomBF16(512, side_, 99);
    const Tensor all = RandomBF16(512, side_, 1);
    const Tensor some = RandomBF16(512, side_, 2);
    Multiply(0, x.view(), all.view());
    for (const int64_t rows : {1, 2, 7, 64}) {
      const int64_t first = 512 - rows - 3;
      const View part = some.view().Rows(0, rows);
      Multiply(0, x.view().Rows(first, first + rows), part);
      BATON_CHECK(std::memcmp(part.data(),
                              all.view().Rows(first, first + rows).data(),
                              static_cast<size_t>(part.bytes())) == 0);
    }
  }

  Line OneRow() {
    const ReadProbe probe(int64_t{1} << 30);
    const Tensor x = RandomBF16(1, side_, 7);
    const Tensor y = RandomBF16(1, side_, 8);
    const double bytes = static_cast<double>(packed_.size()) *
                         static_cast<double>(packed_[0].bytes());
    std::vector<double> ours, others, ratios;
    for (int round = 0; round < options_.rounds; ++round) {
      const double before = Timed([&] { (void)probe.Run(pool()); });
      const double time = Timed([&] {
        for (size_t i = 0; i < packed_.size(); ++i) {
          Multiply(i, x.view(), y.view());
        }
      });
      const double after = Timed([&] { (void)probe.Run(pool()); });
      ours.push_back(bytes / time / 1e9);
      others.push_back(static_cast<double>(probe.bytes()) * 2 /
                       (before + after) / 1e9);
      ratios.push_back(ours.back() / others.back());
    }
    return {fmt::format("M=1 {}x{} / read probe", side_, side_), "GB/s",
            Median(ours), Median(others), Median(ratios)};
  }

  Line ManyRows(int64_t rows) {
    Library library(rows, side_, side_);
    for (const Tensor& weight : plain_) library.AddWeight(weight);
    const Tensor x = RandomBF16(rows, side_, 7);
    const Tensor y = RandomBF16(rows, side_, 8);
    const Tensor z = RandomBF16(rows, side_, 9);
    VerifyAgainst(library, x, y, z);
    const double flop = 2.0 * static_cast<double>(rows * side_ * side_) *
                        static_cast<double>(library.weights());
    std::vector<double> ours, others, ratios;
    for (int round = 0; round < options_.rounds; ++round) {
      const double theirs = Timed([&] {
        for (size_t i = 0; i < library.weights(); ++i) library.Run(i, x, z);
      });
      const double mine = Timed([&] {
        for (size_t i = 0; i < library.weights(); ++i) {
          Multiply(i, x.view(), y.view());
        }
      });
      ours.push_back(flop / mine / 1e9);
      others.push_back(flop / theirs / 1e9);
      ratios.push_back(theirs / mine);
    }
    return {fmt::format("M={} {}x{} / oneDNN packed", rows, side_, side_),
            "GFLOP/s", Median(ours), Median(others), Median(ratios)};
  }

  void VerifyAgainst(Library& library, const Tensor& x, const Tensor& y,
                     const Tensor& z) {
    Multiply(0, x.view(), y.view());
    library.Run(0, x, z);
    for (int64_t row = 0; row < y.shape()[0]; ++row) {
      const bf16* a = y.view().Row<bf16>(row);
      const bf16* b = z.view().Row<bf16>(row);
      for (int64_t i = 0; i < side_; ++i) {
        const auto u = static_cast<float>(a[i]);
        const auto v = static_cast<float>(b[i]);
        BATON_CHECK(std::abs(u - v) <= 0.02f * std::abs(v) + 0.01f);
      }
    }
  }

  ThreadPool& pool() { return PoolOf(*stream_); }

  Options options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  KernelRegistry registry_;
  KernelFn<Matmul> matmul_ = nullptr;
  KernelFn<PackMatrix> pack_ = nullptr;
  int64_t side_ = 0;
  std::vector<Tensor> plain_;  // the first third, for the library
  std::vector<Buffer> packed_;
};

void WriteJson(const Options& options, std::string_view isa,
               const std::vector<Line>& lines) {
  std::FILE* file = std::fopen(options.json.c_str(), "w");
  BATON_CHECK(file != nullptr);
  std::fputs(fmt::format("{{\"isa\": \"{}\", \"threads\": {}, \"lines\": [",
                         isa, options.threads)
                 .c_str(),
             file);
  const char* comma = "";
  for (const Line& line : lines) {
    std::fputs(fmt::format("{}\n  {{\"name\": \"{}\", \"unit\": \"{}\", "
                           "\"ours\": {:.2f}, \"other\": {:.2f}, "
                           "\"ratio\": {:.3f}}}",
                           comma, line.name, line.unit, line.ours, line.other,
                           line.ratio)
                   .c_str(),
               file);
    comma = ",";
  }
  std::fputs("\n]}\n", file);
  std::fclose(file);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--json") options.json = argv[i + 1];
    if (name == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (name == "--rounds") options.rounds = std::atoi(argv[i + 1]);
    if (name == "--matrices") options.matrices = std::atoi(argv[i + 1]);
  }
  omp_set_num_threads(options.threads);
  if (options.threads == 1) g_clock = CLOCK_THREAD_CPUTIME_ID;
  const StatusOr<CpuIsa> isa = DetectCpuIsa();
  if (!isa.ok()) {
    std::fprintf(stderr, "%s\n", ToString(isa.status()).c_str());
    return 1;
  }
  const std::vector<Line> lines = Bench(options, *isa).Run();
  std::printf("bf16 matmul, %s, %d thread(s), medians of %d rounds\n",
              std::string(Name(*isa)).c_str(), options.threads, options.rounds);
  for (const Line& line : lines) {
    std::printf("  %-32s %9.1f vs %9.1f %-8s ratio %.3f\n", line.name.c_str(),
                line.ours, line.other, line.unit.c_str(), line.ratio);
  }
  if (!options.json.empty()) WriteJson(options, Name(*isa), lines);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
