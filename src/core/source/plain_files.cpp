#include "source/plain_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/codec.hpp"
#include "base/parallel.hpp"
#include "platform/held_folder.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kNpyStart = 512;                // NumPy's headers have 128 bytes, as a rule
constexpr std::uint64_t kLongestHeader = 1ULL << 25;  // of .safetensors: some 300,000 tensors
constexpr std::size_t kMostDimensions = 32;
// Files up to this size are read with their headers, as long as all of them together take no more
// than that.
constexpr std::uint64_t kSmallFile = 64 << 10;
constexpr std::uint64_t kMostInMemory = 64 << 20;
constexpr std::size_t kFilesOfAThread = 64;  // more of them are worth a thread
constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();

using Json = nlohmann::json;

std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Takes words off the front of a text.
class Scanner {
   public:
    explicit Scanner(std::string_view text) : text_(text) {}
    bool take(std::string_view word) {
        if (!text_.starts_with(word)) return false;
        text_.remove_prefix(word.size());
        return true;
    }
    // A number without a sign or leading zeros, of at most 18 digits.
    std::optional<std::uint64_t> number() {
        constexpr std::size_t kMostDigits = 18;
        std::size_t digits = 0;
        std::uint64_t value = 0;
        for (; digits < text_.size() && text_[digits] >= '0' && text_[digits] <= '9'; ++digits) {
            if (digits == kMostDigits) return std::nullopt;
            value = value * 10 + static_cast<std::uint64_t>(text_[digits] - '0');
        }
        if (digits == 0 || (digits > 1 && text_[0] == '0')) return std::nullopt;
        text_.remove_prefix(digits);
        return value;
    }
    [[nodiscard]] std::string_view rest() const { return text_; }
    std::string_view word(std::size_t length) {
        const std::string_view found = text_.substr(0, length);
        text_.remove_prefix(found.size());
        return found;
    }

   private:
    std::string_view text_;
};

struct NumpyType {
    std::string_view code;
    DType dtype;
};
constexpr std::array kNumpyTypes = {
    NumpyType{"f2", DType::f16}, NumpyType{"f4", DType::f32}, NumpyType{"f8", DType::f64},
    NumpyType{"i2", DType::i16}, NumpyType{"i4", DType::i32}, NumpyType{"i8", DType::i64},
    NumpyType{"u2", DType::u16}, NumpyType{"u4", DType::u32}, NumpyType{"u8", DType::u64},
    NumpyType{"c8", DType::c64},
};
constexpr std::array kByteTypes = {NumpyType{"|b1", DType::boolean}, NumpyType{"|i1", DType::i8},
                                   NumpyType{"|u1", DType::u8}};

bool take_type(Scanner& in, PlainArray& array) {
    for (const NumpyType& type : kByteTypes) {
        if (in.take(type.code)) {
            array.dtype = type.dtype;
            return true;
        }
    }
    if (in.take(">")) {
        array.byte_order = ByteOrder::big;
    } else if (!in.take("<")) {
        return false;
    }
    if (in.take("c16")) {
        array.dtype = DType::c128;
        return true;
    }
    const std::string_view code = in.word(2);
    for (const NumpyType& type : kNumpyTypes) {
        if (type.code != code) continue;
        array.dtype = type.dtype;
        return true;
    }
    return false;
}

bool take_shape(Scanner& in, std::vector<std::uint64_t>& shape) {
    if (!in.take("(")) return false;
    if (in.take(")")) return true;
    for (;;) {
        const auto size = in.number();
        if (!size || shape.size() == kMostDimensions) return false;
        shape.push_back(*size);
        if (shape.size() == 1 && in.take(",)")) return true;
        if (shape.size() > 1 && in.take(")")) return true;
        if (!in.take(", ")) return false;
    }
}

// Bytes of an array; nothing: more than there can be.
std::optional<std::uint64_t> bytes_of(PlainArray& array) {
    const auto items = checked_product(array.shape);
    if (!items) return std::nullopt;
    const auto bytes = checked_multiply(*items, item_bytes(array.dtype));
    if (!bytes || *bytes > kLargest) return std::nullopt;
    array.items = *items;
    return bytes;
}

}  // namespace

std::optional<PlainFile> plain_npy(std::span<const std::byte> start, std::uint64_t file_bytes) {
    constexpr std::string_view kMagic = "\x93NUMPY\x01\x00";
    constexpr std::size_t kBefore = 10;
    if (start.size() < kBefore || file_bytes < start.size()) return std::nullopt;
    const std::string_view text = text_of(start);
    // The last byte of the magic is a zero, which a literal's length leaves out.
    if (text.substr(0, kMagic.size()) != kMagic || text[kMagic.size()] != '\0') return std::nullopt;
    Decoder in(start.subspan(kBefore - 2, 2));
    const std::size_t length = in.get<std::uint16_t>();
    if (length > start.size() - kBefore) return std::nullopt;
    Scanner header(text.substr(kBefore, length));
    PlainArray array;
    if (!header.take("{'descr': '") || !take_type(header, array)) return std::nullopt;
    if (!header.take("', 'fortran_order': ")) return std::nullopt;
    const bool columns = header.take("True");
    if (!columns && !header.take("False")) return std::nullopt;
    if (!header.take(", 'shape': ") || !take_shape(header, array.shape) || !header.take(", }"))
        return std::nullopt;
    if (header.rest().find_first_not_of(" \n") != std::string_view::npos) return std::nullopt;
    array.fortran_order = columns && array.shape.size() > 1;
    if (array.fortran_order) std::reverse(array.shape.begin(), array.shape.end());
    const auto bytes = bytes_of(array);
    array.offset = kBefore + length;
    if (!bytes || *bytes != file_bytes - array.offset) return std::nullopt;
    PlainFile file;
    file.arrays.push_back(std::move(array));
    return file;
}

namespace {

// What a header of .safetensors says, as long as it is plain: an object of objects with a type, a
// shape and two offsets each, and one of texts.
class HeaderReader final : public nlohmann::json_sax<Json> {
   public:
    PlainFile file;
    struct Offsets {
        std::uint64_t begin = 0, end = 0;
    };
    std::vector<Offsets> offsets;  // of the arrays, behind the header

    bool start_object(std::size_t /*elements*/) override {
        ++depth_;
        if (depth_ == 1) return true;
        if (depth_ != 2) return false;
        if (in_texts_) {
            if (file.has_texts) return false;
            file.has_texts = true;
            return true;
        }
        array_ = {};
        array_.name = name_;
        known_ = {};
        return true;
    }
    bool end_object() override {
        --depth_;
        if (depth_ != 1 || in_texts_) return true;
        if (known_ != std::array{true, true, true} || own_offsets_.size() != 2) return false;
        offsets.push_back({own_offsets_[0], own_offsets_[1]});
        file.arrays.push_back(std::move(array_));
        return true;
    }
    bool key(std::string& text) override {
        if (depth_ == 1) {
            in_texts_ = text == "__metadata__";
            name_ = std::move(text);
            return true;
        }
        word_ = std::move(text);
        return true;
    }
    bool string(std::string& text) override {
        if (depth_ != 2 || in_list_) return false;
        if (in_texts_) {
            file.texts.emplace_back(std::move(word_), std::move(text));
            return true;
        }
        return word_ == "dtype" && !std::exchange(known_[0], true) && take_type(text);
    }
    bool start_array(std::size_t /*elements*/) override {
        if (depth_ != 2 || in_texts_ || in_list_) return false;
        in_list_ = true;
        numbers_.clear();
        if (word_ == "shape") return !std::exchange(known_[1], true);
        return word_ == "data_offsets" && !std::exchange(known_[2], true);
    }
    bool end_array() override {
        in_list_ = false;
        if (word_ == "shape") {
            array_.shape = numbers_;
        } else {
            own_offsets_ = numbers_;
        }
        return array_.shape.size() <= kMostDimensions;
    }
    bool number_unsigned(number_unsigned_t value) override {
        if (!in_list_ || value > kLargest) return false;
        numbers_.push_back(value);
        return true;
    }
    bool number_integer(number_integer_t /*value*/) override { return false; }
    bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return false; }
    bool null() override { return false; }
    bool boolean(bool /*value*/) override { return false; }
    bool binary(binary_t& /*value*/) override { return false; }
    bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                     const nlohmann::detail::exception& /*error*/) override {
        return false;
    }

   private:
    bool take_type(const std::string& name) {
        struct Type {
            std::string_view name;
            DType dtype;
        };
        static constexpr std::array kTypes = {
            Type{"F32", DType::f32}, Type{"BF16", DType::bf16},    Type{"F16", DType::f16},
            Type{"F64", DType::f64}, Type{"BOOL", DType::boolean}, Type{"C64", DType::c64},
            Type{"I8", DType::i8},   Type{"I16", DType::i16},      Type{"I32", DType::i32},
            Type{"I64", DType::i64}, Type{"U8", DType::u8},        Type{"U16", DType::u16},
            Type{"U32", DType::u32}, Type{"U64", DType::u64},
        };
        for (const Type& type : kTypes) {
            if (type.name != name) continue;
            array_.dtype = type.dtype;
            return true;
        }
        return false;
    }

    int depth_ = 0;
    bool in_texts_ = false, in_list_ = false;
    std::string name_, word_;
    PlainArray array_;
    std::array<bool, 3> known_{};  // dtype, shape, data_offsets
    std::vector<std::uint64_t> numbers_, own_offsets_;
};

}  // namespace

std::optional<PlainFile> plain_safetensors(std::span<const std::byte> header, std::uint64_t file_bytes) {
    constexpr std::uint64_t kLengthBytes = 8;
    const std::string_view text = text_of(header);
    if (!text.starts_with("{") || file_bytes < kLengthBytes + text.size()) return std::nullopt;
    HeaderReader reader;
    if (!Json::sax_parse(text.begin(), text.end(), &reader)) return std::nullopt;
    PlainFile& file = reader.file;
    const std::uint64_t data = kLengthBytes + text.size();
    std::unordered_set<std::string_view> names;
    for (std::size_t i = 0; i < file.arrays.size(); ++i) {
        PlainArray& array = file.arrays[i];
        const auto [begin, end] = reader.offsets[i];
        const auto bytes = bytes_of(array);
        if (!bytes || begin > end || *bytes != end - begin || end > file_bytes - data) return std::nullopt;
        array.offset = data + begin;
        if (!names.insert(array.name).second) return std::nullopt;
    }
    std::unordered_set<std::string_view> words;
    for (const auto& [word, value] : file.texts) {
        if (!words.insert(word).second) return std::nullopt;
    }
    // Every byte belongs to one tensor.
    std::vector<HeaderReader::Offsets> ranges = reader.offsets;
    std::ranges::sort(ranges, {}, [](const auto& r) { return std::pair(r.begin, r.end); });
    std::uint64_t at = 0;
    for (const auto& [begin, end] : ranges) {
        if (begin != at) return std::nullopt;
        at = end;
    }
    if (at != file_bytes - data) return std::nullopt;
    return std::move(file);
}

namespace {

std::optional<PlainFile> plain_file(InputFile& file, PlainFormat format) {
    const std::uint64_t size = file.size();
    if (format == PlainFormat::npy) {
        std::array<std::byte, kNpyStart> start;
        const auto part = std::span(start).first(std::min<std::uint64_t>(size, start.size()));
        if (!file.read_at(0, part)) return std::nullopt;
        return plain_npy(part, size);
    }
    std::array<std::byte, 8> length_bytes;
    if (size < length_bytes.size() || !file.read_at(0, length_bytes)) return std::nullopt;
    Decoder in(length_bytes);
    const auto length = in.get<std::uint64_t>();
    if (length > size - length_bytes.size() || length > kLongestHeader) return std::nullopt;
    std::vector<std::byte> header(length);
    if (!file.read_at(length_bytes.size(), header)) return std::nullopt;
    return plain_safetensors(header, size);
}

// The folder in which these files are, or below which: that of the first and the last one, as they
// come sorted. Empty: there is none.
std::string folder_of(std::span<const std::string> paths) {
    if (paths.empty()) return {};
    const std::string& first = paths.front();
    const std::string& last = paths.back();
    const auto [end, ignored] = std::mismatch(first.begin(), first.end(), last.begin(), last.end());
    const std::string_view common(first.data(), static_cast<std::size_t>(end - first.begin()));
    const std::size_t cut = (paths.size() == 1 ? std::string_view(first) : common).rfind('/');
    return first.substr(0, cut == std::string_view::npos ? 0 : cut);
}

// Bytes that are kept of files that were read as a whole: no more once there are enough.
class Kept {
   public:
    [[nodiscard]] std::uint64_t most_of_a_file() const {
        return bytes_.load() < kMostInMemory ? kSmallFile : 0;
    }
    void add(const InputFile& file) { bytes_ += file.size(); }

   private:
    std::atomic<std::uint64_t> bytes_{0};
};

std::optional<PlainFile> read_plain_file(const std::string& path, PlainFormat format,
                                         std::shared_ptr<InputFile> file, std::uint64_t most_in_memory,
                                         const HeldFolder& folder) {
    if (file == nullptr) {
        auto opened = InputFile::open(path, most_in_memory, &folder);
        if (!opened) return std::nullopt;
        file = std::move(opened).value();
    }
    auto found = plain_file(*file, format);
    if (found && file->in_memory()) found->in_memory = std::move(file);
    return found;
}

constexpr std::string_view kNpyBegin = "\x93NUMPY";

bool begins_as_npy(std::span<const std::byte> bytes) { return text_of(bytes) == kNpyBegin; }

// Whether a file begins as .npy files do, read as a whole where it is small.
bool is_npy(const std::string& path, FilesAtHand& at_hand, Kept& kept, const HeldFolder& folder) {
    auto file = InputFile::open(path, kept.most_of_a_file(), &folder);
    std::array<std::byte, kNpyBegin.size()> bytes;
    if (!file || (*file)->size() < bytes.size() || !(*file)->read_at(0, bytes)) return false;
    if (!begins_as_npy(bytes)) return false;
    if ((*file)->in_memory()) {
        kept.add(**file);
        at_hand.keep(std::move(file).value());
    }
    return true;
}

// The same, of which only the first bytes are read.
bool is_npy(const std::string& path, const HeldFolder& folder) {
    const auto [from, name] = HeldFolder::place_of(&folder, path);
    // A pipe must not hold us up.
    const int file = ::openat(from, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return false;
    std::array<std::byte, kNpyBegin.size()> bytes{};
    const ssize_t got = ::read(file, bytes.data(), bytes.size());
    ::close(file);
    return got == static_cast<ssize_t>(bytes.size()) && begins_as_npy(bytes);
}

}  // namespace

void FilesAtHand::keep(std::shared_ptr<InputFile> file) {
    const std::lock_guard lock(mutex_);
    std::string path = file->path();
    files_.insert_or_assign(std::move(path), std::move(file));
}

std::shared_ptr<InputFile> FilesAtHand::take(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(path);
    if (found == files_.end()) return nullptr;
    auto file = std::move(found->second);
    files_.erase(found);
    return file;
}

std::vector<std::optional<PlainFile>> read_plain_files(std::span<const std::string> paths, PlainFormat format,
                                                       int threads, std::string_view without,
                                                       FilesAtHand* at_hand) {
    std::vector<std::optional<PlainFile>> found(paths.size());
    const HeldFolder folder(folder_of(paths));
    Kept kept;
    in_parallel(paths.size(), threads, kFilesOfAThread, [&](std::size_t at, std::size_t /*thread*/) {
        const std::string& path = paths[at];
        try {
            auto file = at_hand == nullptr ? nullptr : at_hand->take(path);
            if (!without.empty() && is_there(std::string(path).append(without))) return;
            found[at] = read_plain_file(path, format, std::move(file), kept.most_of_a_file(), folder);
            if (found[at] && found[at]->in_memory) kept.add(*found[at]->in_memory);
        } catch (const std::exception&) {  // no memory: others say so
            found[at].reset();
        }
    });
    return found;
}

std::vector<char> are_npy(std::span<const std::string> paths, int threads, FilesAtHand* at_hand) {
    std::vector<char> found(paths.size());
    const HeldFolder folder(folder_of(paths));
    Kept kept;
    in_parallel(paths.size(), threads, kFilesOfAThread, [&](std::size_t at, std::size_t /*thread*/) {
        try {
            const bool whole = at_hand != nullptr && kept.most_of_a_file() != 0;
            found[at] = whole ? is_npy(paths[at], *at_hand, kept, folder) : is_npy(paths[at], folder);
        } catch (const std::exception&) {  // no memory: the file is looked at again
            found[at] = 0;
        }
    });
    return found;
}

}  // namespace twinrun
