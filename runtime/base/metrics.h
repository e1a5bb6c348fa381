// SPDX-License-Identifier: Apache-2.0
// Counters, gauges and histograms of this process, kept and exposed by
// prometheus-cpp. Making one with the name and labels of another gives the same
// series. Thread: any.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/base/status.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace baton {

using MetricLabels = std::map<std::string, std::string>;

class Counter {
 public:
  Counter(const std::string& name, const std::string& help,
          const MetricLabels& labels = {});
  void Add(double value = 1);
  [[nodiscard]] double Value() const;

 private:
  prometheus::Counter* series_;
};

class Gauge {
 public:
  Gauge(const std::string& name, const std::string& help,
        const MetricLabels& labels = {});
  void Set(double value);
  void Add(double value);
  [[nodiscard]] double Value() const;

 private:
  prometheus::Gauge* series_;
};

// Buckets from 1 us to 100 s, three a decade.
class Histogram {
 public:
  Histogram(const std::string& name, const std::string& help,
            const MetricLabels& labels = {});
  void Observe(double value);

 private:
  prometheus::Histogram* series_;
};

// The whole registry in the Prometheus text format.
[[nodiscard]] std::string MetricsText();

// Serves /metrics on "host:port" until destroyed.
class MetricsServer {
 public:
  // Unavailable: the address cannot be bound.
  [[nodiscard]] static StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address);
  ~MetricsServer();

 private:
  struct State;
  explicit MetricsServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace baton
