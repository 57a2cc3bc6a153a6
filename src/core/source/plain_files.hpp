// Headers of files that hold arrays as they lie in memory: .npy and .safetensors.
//
// Only what is plain is understood here, and nothing is repaired. Where anything is unusual or
// wrong the answer is nothing, and the readers of these formats, which know all of them, say what
// it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "element/dtype.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

struct PlainArray {
    std::string name;  // of .npy: none
    DType dtype = DType::f32;
    ByteOrder byte_order = ByteOrder::little;
    bool fortran_order = false;
    std::vector<std::uint64_t> shape;  // in the order of the elements: reversed where fortran_order
    std::uint64_t items = 0;
    std::uint64_t offset = 0;  // in the file
};

struct PlainFile {
    std::vector<PlainArray> arrays;  // in the order of the header
    // .safetensors: there are texts beside the arrays, if only none
    bool has_texts = false;
    std::vector<std::pair<std::string, std::string>> texts;
    // A small file, which was read with its header; null: it was not.
    std::shared_ptr<InputFile> in_memory;
};

enum class PlainFormat : std::uint8_t { npy, safetensors };

// The start of a file, of file_bytes in all. npy: one array, which fills the file.
[[nodiscard]] std::optional<PlainFile> plain_npy(std::span<const std::byte> start, std::uint64_t file_bytes);
// The header of a file, without its length; file_bytes: of all.
[[nodiscard]] std::optional<PlainFile> plain_safetensors(std::span<const std::byte> header,
                                                         std::uint64_t file_bytes);

// Small files that were read as a whole when somebody looked at how they begin, so that they are
// opened once. Each is given away once: who asks again reads the file as it is then. Thread-safe.
class FilesAtHand {
   public:
    void keep(std::shared_ptr<InputFile> file);
    // Null: it is not at hand.
    std::shared_ptr<InputFile> take(const std::string& path);

   private:
    std::mutex mutex_;
    std::unordered_map<std::string, std::shared_ptr<InputFile>> files_;
};

// Reads the headers of these files, by several threads where there are many. without: nothing where
// the file's name with this behind it is there, too; empty: that does not matter. at_hand: may be
// null.
[[nodiscard]] std::vector<std::optional<PlainFile>> read_plain_files(std::span<const std::string> paths,
                                                                     PlainFormat format, int threads,
                                                                     std::string_view without = {},
                                                                     FilesAtHand* at_hand = nullptr);

// Whether each of these files begins as .npy files do; links are followed. A file that cannot be
// read does not. at_hand: not null: small ones are read as a whole, and kept there.
[[nodiscard]] std::vector<char> are_npy(std::span<const std::string> paths, int threads,
                                        FilesAtHand* at_hand = nullptr);

}  // namespace twinrun
