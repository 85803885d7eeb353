// CRC-32C (Castagnoli, RFC 3720): "123456789" -> 0xe3069283.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lynx {

// Continue with the value of the previous piece; 0 begins.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

// The definition, byte by byte. Crc32c equals it everywhere.
std::uint32_t Crc32cReference(std::span<const std::byte> bytes, std::uint32_t previous = 0);

// The ways that this machine has, Crc32c's first and the definition last. For tests.
using Crc32cFunction = std::uint32_t (*)(std::span<const std::byte> bytes, std::uint32_t previous);
std::span<const Crc32cFunction> AllCrc32c();

}  // namespace lynx
