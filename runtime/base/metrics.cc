// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>

namespace baton {
namespace {

// Lives as long as the process, so that series never dangle.
std::shared_ptr<prometheus::Registry>& Registry() {
  static auto* registry = new std::shared_ptr<prometheus::Registry>(
      std::make_shared<prometheus::Registry>());
  return *registry;
}

prometheus::Histogram::BucketBoundaries Buckets() {
  prometheus::Histogram::BucketBoundaries bounds;
  for (double decade = 1e-6; decade < 50; decade *= 10) {
    for (double step : {1.0, 2.0, 5.0}) bounds.push_back(decade * step);
  }
  bounds.push_back(100);
  return bounds;
}

}  // namespace

Counter::Counter(const std::string& name, const std::string& help,
                 const MetricLabels& labels)
    : series_(&prometheus::BuildCounter()
                   .Name(name)
                   .Help(help)
                   .Register(*Registry())
                   .Add(labels)) {}
void Counter::Add(double value) { series_->Increment(value); }
double Counter::Value() const { return series_->Value(); }

Gauge::Gauge(const std::string& name, const std::string& help,
             const MetricLabels& labels)
    : series_(&prometheus::BuildGauge()
                   .Name(name)
                   .Help(help)
                   .Register(*Registry())
                   .Add(labels)) {}
void Gauge::Set(double value) { series_->Set(value); }
void Gauge::Add(double value) { series_->Increment(value); }
double Gauge::Value() const { return series_->Value(); }

Histogram::Histogram(const std::string& name, const std::string& help,
                     const MetricLabels& labels)
    : series_(&prometheus::BuildHistogram()
                   .Name(name)
                   .Help(help)
                   .Register(*Registry())
                   .Add(labels, Buckets())) {}
void Histogram::Observe(double value) { series_->Observe(value); }

std::string MetricsText() {
  return prometheus::TextSerializer().Serialize(Registry()->Collect());
}

struct MetricsServer::State {
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
MetricsServer::~MetricsServer() = default;

StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address) {
  auto state = std::make_unique<State>();
  try {  // the library reports a busy port by throwing
    state->exposer = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception& error) {
    return Unavailable("serve metrics on {}: {}", address, error.what());
  }
  state->exposer->RegisterCollectable(Registry());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(state)));
}

}  // namespace baton
