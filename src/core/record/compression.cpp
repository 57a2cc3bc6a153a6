#include "record/compression.hpp"

#include <new>
#include <utility>

#if defined(TWINRUN_HAVE_ZSTD)
#include <zstd.h>
#endif

namespace twinrun {

#if defined(TWINRUN_HAVE_ZSTD)

struct Compressor::State {
    ZSTD_CCtx* pack = nullptr;
    ZSTD_CCtx* literals = nullptr;
    ZSTD_DCtx* unpack = nullptr;
    ~State() {
        ZSTD_freeCCtx(pack);
        ZSTD_freeCCtx(literals);
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

namespace {

// ZSTD_c_literalCompressionMode, by the name that zstd.h gives it for all programs. A library that
// does not know it says so: then literals stay unpacked, and a search packs better.
constexpr ZSTD_cParameter kLiteralMode = ZSTD_c_experimentalParam5;
constexpr int kLiteralsPacked = 1;
// The search looks at one place of as many bytes: at none but the first of a block.
constexpr int kLongestStep = 1 << 17;
constexpr int kSmallestTable = 6;  // binary logarithm: the table is cleared for each frame

}  // namespace

std::size_t Compressor::pack_literals(std::span<const std::byte> from, std::span<std::byte> to) {
    if (state_->literals == nullptr) {
        state_->literals = ZSTD_createCCtx();
        if (state_->literals == nullptr) throw std::bad_alloc();
        const std::pair<ZSTD_cParameter, int> settings[] = {{ZSTD_c_compressionLevel, 1},
                                                            {ZSTD_c_strategy, ZSTD_fast},
                                                            {ZSTD_c_windowLog, 17},
                                                            {ZSTD_c_hashLog, kSmallestTable},
                                                            {ZSTD_c_targetLength, kLongestStep},
                                                            {kLiteralMode, kLiteralsPacked}};
        for (const auto& [name, value] : settings)
            ZSTD_CCtx_setParameter(state_->literals, name, value);
    }
    const std::size_t size = ZSTD_compress2(state_->literals, to.data(), to.size(), from.data(), from.size());
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
std::size_t Compressor::pack_literals(std::span<const std::byte>, std::span<std::byte>) { return 0; }
Result<> Compressor::unpack(std::span<const std::byte>, std::span<std::byte>) {
    return Error{ErrorCode::unsupported,
                 "packed with zstd, which this build of twinrun lacks: build it with libzstd"};
}

#endif

Compressor::~Compressor() = default;
Compressor::Compressor(Compressor&&) noexcept = default;

}  // namespace twinrun
