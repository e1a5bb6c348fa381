// SPDX-License-Identifier: Apache-2.0
// Products as a stage computes them: packed, by each kind of row, summed by the
// ranks. One rank alone has the same bits.
#include "kernels/cuda/kernels.h"
#include "tests/device/ranks_check.h"

namespace baton::check {
namespace {

struct MatrixShape {
  int64_t n, k;
};

// Columns of a matrix [n, k] on a device: all, or those of a rank.
class Packed {
 public:
  Packed(End& end, const std::vector<bf16>& w, int64_t at,
         const MatrixShape& all, int64_t first, int64_t count)
      : memory_(Tensor::Allocate(*end.device, DType::kBF16, {all.n, count})
                    .value()),
        matrix_{.data = memory_.view().data(),
                .dtype = DType::kBF16,
                .n = all.n,
                .k = count,
                .halves = static_cast<int>(2 * count / all.k)} {
    const ConstView rows(reinterpret_cast<const std::byte*>(w.data() + at),
                         DType::kBF16, {all.n, all.k});
    BATON_CHECK(memory_.bytes() == PackedBytesOn(DeviceKind::kCuda, all.n,
                                                 count, 1, DType::kBF16));
    BATON_CHECK(
        cuda::PackMatrixCuda({.rows = rows.Columns(first, first + count),
                              .first_row = 0,
                              .packed = memory_.view().data(),
                              .dtype = DType::kBF16,
                              .n = all.n,
                              .k = count},
                             *end.stream)
            .ok());
  }
  [[nodiscard]] const PackedMatrix& matrix() const { return matrix_; }

 private:
  Tensor memory_;
  PackedMatrix matrix_;
};

// x [rows, k] by experts, each row by one of its own; one expert is a matrix of
// all rows.
class Product {
 public:
  Product(int64_t experts, int64_t rows, const MatrixShape& shape, RowKind kind)
      : experts_(experts),
        rows_(rows),
        shape_(shape),
        kind_(kind),
        w_(Random<bf16>(experts * shape.n * shape.k, 8)),
        x_(Random<bf16>(rows * shape.k, 9)) {
    for (int64_t row = 0; row < rows; ++row) {
      of_row_.push_back(static_cast<int32_t>(row * row % experts));
    }
  }

  void Check(Pair& pair) const {
    const int64_t half = shape_.k / 2;
    pair.Run([&](int rank, End& end, Collective& group) {
      const Tensor alone = Multiply(end, 0, shape_.k, DType::kBF16);
      const Tensor part = Multiply(end, rank * half, half, DType::kF32);
      Tensor sum =
          Tensor::Allocate(*end.device, DType::kBF16, {rows_, shape_.n})
              .value();
      Expect(group.AllReduce(part.view(), sum.view(), *end.stream).ok(),
             "products: sum");
      Expect(end.Download(sum) == end.Download(alone),
             fmt::format("{} rows of {} by {} matrices [{}, {}], rank {}",
                         rows_, kind_ == RowKind::kPrompt ? "prompts" : "steps",
                         experts_, shape_.n, shape_.k, rank));
    });
  }

 private:
  // By the columns [first, first + count).
  [[nodiscard]] Tensor Multiply(End& end, int64_t first, int64_t count,
                                DType dtype) const {
    // What the last one knew of matrices, which are gone, goes with it.
    end.stream = end.device->NewStream().value();
    std::vector<Packed> packed;
    std::vector<PackedMatrix> weights;
    for (int64_t e = 0; e < experts_; ++e) {
      packed.emplace_back(end, w_, e * shape_.n * shape_.k, shape_, first,
                          count);
      weights.push_back(packed.back().matrix());
    }
    std::vector<bf16> columns;
    for (int64_t row = 0; row < rows_; ++row) {
      const auto from = x_.begin() + row * shape_.k + first;
      columns.insert(columns.end(), from, from + count);
    }
    const Tensor x = end.Upload(DType::kBF16, {rows_, count}, columns.data());
    Tensor out =
        Tensor::Allocate(*end.device, dtype, {rows_, shape_.n}).value();
    const RowRun run = {.kind = kind_, .first = 0, .rows = rows_};
    Status status;
    if (experts_ == 1) {
      status = cuda::MatmulCuda({.x = x.view(),
                                 .weight = weights[0],
                                 .out = out.view(),
                                 .runs = {&run, 1}},
                                *end.stream);
    } else {
      const Tensor experts =
          end.Upload(DType::kI32, {rows_, 1}, of_row_.data());
      status = cuda::GroupedMatmulCuda({.x = x.view(),
                                        .experts = experts.view(),
                                        .weights = weights,
                                        .out = out.view(),
                                        .runs = {&run, 1}},
                                       *end.stream);
      BATON_CHECK(end.stream->Synchronize().ok());  // experts go
    }
    Expect(status.ok(), "products: " + std::string(status.message()));
    BATON_CHECK(end.stream->Synchronize().ok());
    return out;
  }

  int64_t experts_, rows_;
  MatrixShape shape_;
  RowKind kind_;
  std::vector<bf16> w_, x_;
  std::vector<int32_t> of_row_;
};

// One token's slots through a product that needs no order of them, then through
// one that does: the same as if it came first.
void CheckOneToken(End& end) {
  constexpr int64_t kExperts = 3, kTop = 2;
  constexpr MatrixShape kUp = {80, 128}, kDown = {40, 80};
  end.stream = end.device->NewStream().value();
  std::vector<Packed> packed;
  const auto matrices = [&](const MatrixShape& shape, uint32_t seed) {
    const std::vector<bf16> w =
        Random<bf16>(kExperts * shape.n * shape.k, seed);
    std::vector<PackedMatrix> all;
    for (int64_t e = 0; e < kExperts; ++e) {
      packed.emplace_back(end, w, e * shape.n * shape.k, shape, 0, shape.k);
      all.push_back(packed.back().matrix());
    }
    BATON_CHECK(end.stream->Synchronize().ok());
    return all;
  };
  const std::vector<PackedMatrix> up = matrices(kUp, 1);
  const std::vector<PackedMatrix> down = matrices(kDown, 2);
  const std::vector<int32_t> chosen = {2, 0};
  const Tensor experts = end.Upload(DType::kI32, {1, kTop}, chosen.data());
  const Tensor x =
      end.Upload(DType::kBF16, {1, kUp.k}, Random<bf16>(kUp.k, 3).data());
  const std::vector<bf16> zeros(kTop * kUp.n);
  const Tensor inner = end.Upload(DType::kBF16, {kTop, kUp.n}, zeros.data());
  const RowRun run = {.kind = RowKind::kGenerated, .first = 0, .rows = 1};
  const auto multiply = [&](ConstView from, std::span<const PackedMatrix> by,
                            View out, SlotOrder order) {
    const Status status = cuda::GroupedMatmulCuda({.x = from,
                                                   .experts = experts.view(),
                                                   .weights = by,
                                                   .out = out,
                                                   .runs = {&run, 1},
                                                   .order = order},
                                                  *end.stream);
    Expect(status.ok(), "one token: " + std::string(status.message()));
  };
  std::array<Tensor, 2> outs;
  for (Tensor& out : outs) {
    out = end.Upload(DType::kBF16, {kTop, kDown.n}, zeros.data());
  }
  multiply(x.view(), up, inner.view(), SlotOrder::kNew);
  multiply(inner.view(), down, outs[0].view(), SlotOrder::kAsBefore);
  multiply(inner.view(), down, outs[1].view(), SlotOrder::kNew);
  const std::vector<std::byte> got = end.Download(outs[0]);
  Expect(
      got == end.Download(outs[1]) && got != std::vector<std::byte>(got.size()),
      "one token: slots in order");
}

}  // namespace

void CheckProducts(Pair& pair) {
  CheckOneToken(pair.ends[0]);
  for (const int64_t half : {8, 24, 32, 48, 64, 96, 128, 512}) {
    for (const int64_t experts : {1, 5}) {
      for (const int64_t rows : {1, 7, 70}) {
        for (const RowKind kind : {RowKind::kGenerated, RowKind::kPrompt}) {
          Product(experts, rows, {264, 2 * half}, kind).Check(pair);
        }
      }
    }
  }
  Product(1, 2100, {128, 192}, RowKind::kPrompt).Check(pair);  // in two parts
}

}  // namespace baton::check
