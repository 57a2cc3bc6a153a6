// Packing of bytes by a library: Zstandard, where this build has it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "record/delta.hpp"

namespace twinrun {

[[nodiscard]] bool codec_available(PayloadCodec codec);

// Not thread-safe; one a thread.
class Compressor {
   public:
    Compressor();
    ~Compressor();
    Compressor(Compressor&&) noexcept;
    Compressor& operator=(Compressor&&) = delete;
    // Bytes written to `to`; 0: they would not fit, or there was no memory. Throws std::bad_alloc
    // on first use.
    std::size_t pack(std::span<const std::byte> from, std::span<std::byte> to, int level);
    // The same by the frequencies of byte values alone, without a search for repeats: fast to pack
    // and to read. The frame is like any other.
    std::size_t pack_literals(std::span<const std::byte> from, std::span<std::byte> to);
    // Exactly to.size() bytes. Errors: damaged; unsupported (a build without it).
    Result<> unpack(std::span<const std::byte> from, std::span<std::byte> to);

   private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace twinrun
