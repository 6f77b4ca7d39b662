#include "tools/load/payload.h"

#include <algorithm>
#include <cstring>

namespace kvcachefs {
namespace {
constexpr uint64_t kWordBytes = 8;
constexpr uint64_t kBlockWords = 512;  // compared at once; only a block that differs is searched for the exact byte
}  // namespace

uint64_t mix64(uint64_t value) {
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93ULL;
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93ULL;
  return value ^ (value >> 32);
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix64(hash);
}

uint64_t Payload::word(uint64_t index) const {
  uint64_t x = seed_ + index * 0x9e3779b97f4a7c15ULL;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ULL;
  return x ^ (x >> 32);
}

std::byte Payload::byte_at(uint64_t offset) const {
  return static_cast<std::byte>(word(offset / kWordBytes) >> (offset % kWordBytes * 8));
}

void Payload::fill(std::span<std::byte> out, uint64_t offset) const {
  size_t at = 0;
  for (; at < out.size() && (offset + at) % kWordBytes != 0; ++at) out[at] = byte_at(offset + at);
  uint64_t index = (offset + at) / kWordBytes;
  for (; at + kWordBytes <= out.size(); at += kWordBytes, ++index) {
    const uint64_t value = word(index);
    std::memcpy(out.data() + at, &value, kWordBytes);
  }
  for (; at < out.size(); ++at) out[at] = byte_at(offset + at);
}

std::optional<uint64_t> Payload::first_mismatch(std::span<const std::byte> bytes, uint64_t offset) const {
  size_t at = 0;
  auto differs_by_byte = [&](size_t end) -> std::optional<uint64_t> {
    for (; at < end; ++at) {
      if (bytes[at] != byte_at(offset + at)) return offset + at;
    }
    return std::nullopt;
  };
  const size_t head = std::min<size_t>(bytes.size(), (kWordBytes - offset % kWordBytes) % kWordBytes);
  if (auto found = differs_by_byte(head)) return found;
  while (bytes.size() - at >= kWordBytes) {
    const size_t words = std::min<size_t>(kBlockWords, (bytes.size() - at) / kWordBytes);
    const uint64_t index = (offset + at) / kWordBytes;
    uint64_t difference = 0;
    for (size_t i = 0; i < words; ++i) {
      uint64_t value;
      std::memcpy(&value, bytes.data() + at + i * kWordBytes, kWordBytes);
      difference |= value ^ word(index + i);
    }
    const size_t end = at + words * kWordBytes;
    if (difference != 0) return differs_by_byte(end);
    at = end;
  }
  return differs_by_byte(bytes.size());
}

bool Payload::sample_matches(std::span<const std::byte> bytes) const {
  if (bytes.size() < kWordBytes) return !first_mismatch(bytes);
  constexpr uint64_t kSamples = 8;
  const uint64_t last = bytes.size() - kWordBytes;
  for (uint64_t i = 0; i < kSamples; ++i) {
    const uint64_t at = last * i / (kSamples - 1);
    if (first_mismatch(bytes.subspan(at, kWordBytes), at)) return false;
  }
  return true;
}

}  // namespace kvcachefs
