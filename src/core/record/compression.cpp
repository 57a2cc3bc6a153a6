#include "record/compression.hpp"

#include <new>

#if defined(TWINRUN_HAVE_ZSTD)
#include <zstd.h>
#endif

namespace twinrun {

#if defined(TWINRUN_HAVE_ZSTD)

struct Compressor::State {
    ZSTD_CCtx* pack = nullptr;
    ZSTD_DCtx* unpack = nullptr;
    ~State() {
        ZSTD_freeCCtx(pack);
        ZSTD_freeDCtx(unpack);
    }
};

bool codec_available(PayloadCodec codec) {
    return codec == PayloadCodec::stored || codec == PayloadCodec::zstd;
}

Compressor::Compressor() : state_(std::make_unique<State>()) {}

std::size_t Compressor::pack(std::span<const std::byte> from, std::span<std::byte> to, int level) {
    if (state_->pack == nullptr) state_->pack = ZSTD_createCCtx();
    if (state_->pack == nullptr) throw std::bad_alloc();
    const std::size_t size =
        ZSTD_compressCCtx(state_->pack, to.data(), to.size(), from.data(), from.size(), level);
    return ZSTD_isError(size) != 0 ? 0 : size;
}

Result<> Compressor::unpack(std::span<const std::byte> from, std::span<std::byte> to) {
    if (state_->unpack == nullptr) state_->unpack = ZSTD_createDCtx();
    if (state_->unpack == nullptr) throw std::bad_alloc();
    const std::size_t size =
        ZSTD_decompressDCtx(state_->unpack, to.data(), to.size(), from.data(), from.size());
    if (ZSTD_isError(size) != 0)
        return Error{ErrorCode::damaged, std::string("zstd: ") + ZSTD_getErrorName(size)};
    if (size != to.size()) return Error{ErrorCode::damaged, "zstd: another size than the index says"};
    return success();
}

#else

struct Compressor::State {};

bool codec_available(PayloadCodec codec) { return codec == PayloadCodec::stored; }
Compressor::Compressor() = default;
std::size_t Compressor::pack(std::span<const std::byte>, std::span<std::byte>, int) { return 0; }
Result<> Compressor::unpack(std::span<const std::byte>, std::span<std::byte>) {
    return Error{ErrorCode::unsupported,
                 "packed with zstd, which this build of twinrun lacks: build it with libzstd"};
}

#endif

Compressor::~Compressor() = default;
Compressor::Compressor(Compressor&&) noexcept = default;

}  // namespace twinrun
