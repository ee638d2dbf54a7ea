// Asks a Gatefuse server for silu(g) * u, with FP32 and with BF16 rows, and checks both answers.
//
//   infer HOST:PORT MODEL      MODEL takes g and u and gives y, as silu-gate of deploy/config/demo.yaml does
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "open_inference.grpc.pb.h"

namespace {

using Rows = std::vector<float>;
using Stub = inference::GRPCInferenceService::Stub;

constexpr int64_t kRows = 3;
constexpr int64_t kColumnsIfAny = 64;
constexpr float kTolerance = 1.0f / 64;  // the model computes in bf16, which has 8 bits of significand

// A bfloat16 is the upper half of a float32: rounded to the nearest, ties to even, never cut off.
uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float FromBf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Elements as they travel: packed and little-endian, as this machine's memory is.
std::string Pack(const Rows& rows, bool bf16) {
  if (!bf16) return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)};
  std::vector<uint16_t> halves;
  for (const float value : rows) halves.push_back(ToBf16(value));
  return {reinterpret_cast<const char*>(halves.data()), halves.size() * sizeof(uint16_t)};
}

Rows Unpack(const std::string& raw, bool bf16) {
  Rows rows(raw.size() / (bf16 ? sizeof(uint16_t) : sizeof(float)));
  if (!bf16) {
    std::memcpy(rows.data(), raw.data(), raw.size());
    return rows;
  }
  std::vector<uint16_t> halves(rows.size());
  std::memcpy(halves.data(), raw.data(), raw.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = FromBf16(halves[i]);
  return rows;
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

// The width that the model declares, or ours if it takes any.
int64_t Columns(Stub& stub, const std::string& model) {
  grpc::ClientContext context;
  SetDeadline(context);
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse response;
  request.set_name(model);
  const grpc::Status status = stub.ModelMetadata(&context, request, &response);
  if (!status.ok()) throw std::runtime_error(status.error_message());
  const int64_t width = response.inputs(0).shape(1);
  return width < 0 ? kColumnsIfAny : width;
}

void AddInput(inference::ModelInferRequest& request, const std::string& name, int64_t columns,
              const Rows& rows, bool bf16) {
  auto* tensor = request.add_inputs();
  tensor->set_name(name);
  tensor->set_datatype(bf16 ? "BF16" : "FP32");
  tensor->add_shape(kRows);
  tensor->add_shape(columns);
  request.add_raw_input_contents(Pack(rows, bf16));
}

// Sends one request; returns the elements that are wrong.
size_t Check(Stub& stub, const std::string& model, int64_t columns, bool bf16) {
  Rows g(kRows * columns), u(kRows * columns);
  for (size_t i = 0; i < g.size(); ++i) {
    g[i] = std::sin(0.37f * i) * 4;
    u[i] = std::cos(0.11f * i) + 2;
  }
  inference::ModelInferRequest request;
  request.set_model_name(model);
  request.set_id("from C++");
  AddInput(request, "g", columns, g, bf16);
  AddInput(request, "u", columns, u, bf16);
  request.add_outputs()->set_name("y");

  grpc::ClientContext context;
  SetDeadline(context);
  inference::ModelInferResponse response;
  const grpc::Status status = stub.ModelInfer(&context, request, &response);
  if (!status.ok()) throw std::runtime_error(status.error_message());
  const Rows y = Unpack(response.raw_output_contents(0), bf16);
  if (response.id() != request.id() || y.size() != g.size()) return g.size();

  size_t wrong = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const float exact = g[i] / (1 + std::exp(-g[i])) * u[i];
    if (!(std::abs(y[i] - exact) <= kTolerance * (std::abs(exact) + kTolerance))) ++wrong;
  }
  std::cout << response.outputs(0).datatype() << ": " << y.size() - wrong << " of " << y.size()
            << " elements right, " << response.parameters().at("kernel_launches").int64_param()
            << " kernel launches\n";
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: infer HOST:PORT MODEL\n";
    return 2;
  }
  try {
    const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
    const auto stub = inference::GRPCInferenceService::NewStub(channel);
    const int64_t columns = Columns(*stub, argv[2]);
    const size_t wrong = Check(*stub, argv[2], columns, false);
    return wrong + Check(*stub, argv[2], columns, true) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
