#include "engine/packed_results.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/checksum.hpp"
#include "base/codec.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kTexts = PackedResults::kTexts;

// A result without its texts, as words.
struct Plain {
    std::uint64_t method = 0;
    std::uint64_t max_abs_is_bound = 0;
    std::array<std::uint64_t, 3> ran{};
    std::array<std::uint64_t, kTexts> texts{};  // numbers of them
    double device_seconds = 0;
    std::uint64_t scalars = 0;
    std::uint64_t chunks = 0;
    DifferenceStats read;
    ProvenDrift proven;
    std::array<std::uint64_t, 3> unread{};
    double max_abs = 0;
    double max_abs_unread = 0;
    std::array<std::array<std::uint64_t, 3>, 3> stages{};
    std::array<double, 3> seconds{};
    std::array<std::uint64_t, 4> bits{};
};
static_assert(std::is_trivially_copyable_v<Plain>);
static_assert(alignof(Plain) == sizeof(std::uint64_t));
// No padding, whose content would be no content.
static_assert(sizeof(DifferenceStats) == sizeof(std::uint64_t) * (13 + 2 * kHistogramBins));
static_assert(sizeof(ProvenDrift) == sizeof(std::uint64_t) * 11);
static_assert(sizeof(Plain) == sizeof(std::uint64_t) * (5 + kTexts + 3 + 3 + 2 + 9 + 3 + 4) +
                                   sizeof(DifferenceStats) + sizeof(ProvenDrift));

constexpr std::size_t kWords = sizeof(Plain) / sizeof(std::uint64_t);
constexpr std::size_t kMapWords = (kWords + 63) / 64;
using Words = std::array<std::uint64_t, kWords>;

Error no_results() { return {ErrorCode::damaged, "these are not the results of a comparison"}; }

template <class R>
auto stages_of(R& result) {
    return std::array{&result.tree, &result.sketch, &result.elements};
}

}  // namespace

std::uint64_t PackedResults::number(const std::string& text, std::uint64_t before) {
    if (before < texts_.size() && texts_[before] == text) return before;
    const auto [known, is_new] = numbers_.try_emplace(text, texts_.size());
    if (is_new) texts_.push_back(text);
    return known->second;
}

void PackedResults::put(std::size_t at, const FieldResult& result) {
    Plain plain;
    plain.method = static_cast<std::uint64_t>(result.method);
    plain.max_abs_is_bound = result.max_abs_is_bound ? 1 : 0;
    std::string warnings;  // each with an end
    for (const std::string& warning : result.warnings)
        warnings.append(warning).push_back('\0');
    const std::array<const std::string*, kTexts> texts = {&result.reason, &result.io, &result.device,
                                                          &result.device_reason, &warnings};
    for (std::size_t i = 0; i < kTexts; ++i)
        plain.texts[i] = last_texts_[i] = number(*texts[i], last_texts_[i]);
    plain.device_seconds = result.device_seconds;
    plain.scalars = result.scalars;
    plain.chunks = result.chunks;
    plain.read = result.read;
    plain.proven = result.proven;
    plain.unread = {result.unread_different, result.unread_begin, result.unread_end};
    plain.max_abs = result.max_abs;
    plain.max_abs_unread = result.max_abs_unread;
    const auto stages = stages_of(result);
    for (std::size_t i = 0; i < stages.size(); ++i) {
        plain.ran[i] = stages[i]->ran ? 1 : 0;
        plain.stages[i] = {stages[i]->chunks_in, stages[i]->chunks_out, stages[i]->bytes_read};
        plain.seconds[i] = stages[i]->seconds;
    }
    plain.bits = {result.first_bits_a, result.first_bits_b, result.max_bits_a, result.max_bits_b};

    const auto words = std::bit_cast<Words>(plain);
    if (first_.empty()) first_.assign(words.begin(), words.end());
    const std::size_t begin = words_.size();
    words_.resize(begin + kMapWords);
    for (std::size_t m = 0; m < kMapWords; ++m) {
        const std::size_t first = m * 64;
        const std::size_t count = std::min<std::size_t>(64, kWords - first);
        std::uint64_t map = 0;  // most words are those of the first result
        for (std::size_t i = 0; i < count; ++i)
            map |= std::uint64_t{words[first + i] != first_[first + i]} << i;
        words_[begin + m] = map;
        for (; map != 0; map &= map - 1)
            words_.push_back(words[first + static_cast<std::size_t>(std::countr_zero(map))]);
    }
    begins_[at] = begin;
}

template <class T>
T PackedResults::unpacked(std::size_t at) const {
    Words words;
    std::memcpy(words.data(), first_.data(), sizeof words);
    std::size_t next = begins_[at] + kMapWords;
    for (std::size_t m = 0; m < kMapWords; ++m) {
        for (std::uint64_t map = words_[begins_[at] + m]; map != 0; map &= map - 1)
            words[m * 64 + static_cast<std::size_t>(std::countr_zero(map))] = words_[next++];
    }
    return std::bit_cast<T>(words);
}

FieldResult PackedResults::get(std::size_t at) const {
    const auto plain = unpacked<Plain>(at);
    FieldResult result;
    result.method = static_cast<Method>(plain.method);
    result.max_abs_is_bound = plain.max_abs_is_bound != 0;
    result.reason = texts_[plain.texts[0]];
    result.io = texts_[plain.texts[1]];
    result.device = texts_[plain.texts[2]];
    result.device_reason = texts_[plain.texts[3]];
    const std::string& warnings = texts_[plain.texts[4]];
    for (std::size_t begin = 0; begin < warnings.size();) {
        const std::size_t end = warnings.find('\0', begin);
        result.warnings.push_back(warnings.substr(begin, end - begin));
        if (end == std::string::npos) break;
        begin = end + 1;
    }
    result.device_seconds = plain.device_seconds;
    result.scalars = plain.scalars;
    result.chunks = plain.chunks;
    result.read = plain.read;
    result.proven = plain.proven;
    result.unread_different = plain.unread[0];
    result.unread_begin = plain.unread[1];
    result.unread_end = plain.unread[2];
    result.max_abs = plain.max_abs;
    result.max_abs_unread = plain.max_abs_unread;
    const auto stages = stages_of(result);
    for (std::size_t i = 0; i < stages.size(); ++i) {
        *stages[i] = {plain.ran[i] != 0, plain.stages[i][0], plain.stages[i][1], plain.stages[i][2],
                      plain.seconds[i]};
    }
    result.first_bits_a = plain.bits[0];
    result.first_bits_b = plain.bits[1];
    result.max_bits_a = plain.bits[2];
    result.max_bits_b = plain.bits[3];
    return result;
}

std::vector<std::byte> PackedResults::bytes() const {
    Encoder out;
    out.put(std::uint64_t{kWords});
    out.put(std::uint64_t{first_.size()});
    out.put(std::uint64_t{begins_.size()});
    out.put(std::uint64_t{words_.size()});
    out.put(std::uint64_t{texts_.size()});
    for (const auto* words : {&first_, &begins_, &words_}) {
        for (const std::uint64_t word : *words)
            out.put(word);
    }
    for (const std::string& text : texts_)
        out.put_text(text);
    out.put(xxh3(out.bytes()));
    return out.bytes();
}

Result<PackedResults> PackedResults::from(std::span<const std::byte> bytes) {
    constexpr std::size_t kSum = sizeof(std::uint64_t);
    if (bytes.size() < kSum) return no_results();
    Decoder sum(bytes.last(kSum));
    if (sum.get<std::uint64_t>() != xxh3(bytes.first(bytes.size() - kSum))) return no_results();
    Decoder in(bytes.first(bytes.size() - kSum));
    const auto words_of_result = in.get<std::uint64_t>();
    const std::array<std::uint64_t, 3> counts = {in.get<std::uint64_t>(), in.get<std::uint64_t>(),
                                                 in.get<std::uint64_t>()};
    const auto texts = in.get<std::uint64_t>();
    if (in.failed() || words_of_result != kWords || (counts[0] != 0 && counts[0] != kWords))
        return no_results();
    PackedResults made;
    const std::array<std::vector<std::uint64_t>*, 3> parts = {&made.first_, &made.begins_, &made.words_};
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (in.remaining() / sizeof(std::uint64_t) < counts[i]) return no_results();
        parts[i]->resize(counts[i]);
        for (std::uint64_t& word : *parts[i])
            word = in.get<std::uint64_t>();
    }
    if (in.remaining() / sizeof(std::uint32_t) < texts) return no_results();
    for (std::uint64_t i = 0; i < texts; ++i)
        static_cast<void>(made.number(in.get_text(std::numeric_limits<std::uint32_t>::max()), kNone));
    if (in.failed() || in.remaining() != 0 || made.texts_.size() != texts) return no_results();
    for (std::size_t at = 0; at < made.size(); ++at) {
        if (made.has(at) && !made.is_whole(at)) return no_results();
    }
    return made;
}

bool PackedResults::is_whole(std::size_t at) const {
    const std::uint64_t begin = begins_[at];
    if (first_.empty() || begin > words_.size() || words_.size() - begin < kMapWords) return false;
    const std::uint64_t own = words_.size() - begin - kMapWords;
    std::uint64_t changed = 0;
    for (std::size_t m = 0; m < kMapWords; ++m) {
        const std::uint64_t map = words_[begin + m];
        if (m == kMapWords - 1 && kWords % 64 != 0 && map >> (kWords % 64) != 0) return false;
        changed += static_cast<std::uint64_t>(std::popcount(map));
    }
    if (changed > own) return false;
    const Plain plain = unpacked<Plain>(at);
    return plain.method <= static_cast<std::uint64_t>(Method::published) &&
           std::all_of(plain.texts.begin(), plain.texts.end(),
                       [&](std::uint64_t text) { return text < texts_.size(); });
}

}  // namespace twinrun
