// Fields by the thousand, compared at once: which of two lists belong together, and where their
// elements come from.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/sizes.hpp"
#include "device/device.hpp"
#include "element/dtype.hpp"
#include "engine/compare.hpp"
#include "metadata/metadata.hpp"
#include "source/device_array.hpp"
#include "source/later_source.hpp"
#include "source/open_files.hpp"
#include "source/plain_files.hpp"

namespace twinrun {

// A field of a list: an array of native numbers in memory of the host, dense, or on a device, a
// field of metadata, or one that lies in a file as it is.
struct ListedField {
    std::string_view text;  // its name
    const void* data = nullptr;
    DType dtype = DType::f32;
    bool fortran_order = false;
    std::uint64_t items = 0;
    Sizes shape;  // as the core takes it: reversed where fortran_order
    const FieldMetadata* metadata = nullptr;
    std::size_t number = 0;                    // in the metadata
    ByteOrder byte_order = ByteOrder::little;  // in a file
    bool in_file = false;                      // then `extents` says where, none for no elements
    std::vector<Extent> extents;               // in files of the list
    int device = kHostMemory;
    std::vector<std::int64_t> strides;  // on a device: bytes, one a dimension; empty: dense
    StreamHandle stream = nullptr;      // on a device: whose earlier work makes the data
};

// Of a field on a device.
DeviceArray array_of(const ListedField& field);

// Whether two fields are compared as they lie: of one type, shape and order, the same part of the
// same array.
bool are_alike(const ListedField& a, const ListedField& b);

// Which field of b has the name of each of a, and is like it; nothing where one has none. in_order:
// those at the same place. Names are unique in a list, unless it is in order.
template <std::derived_from<ListedField> Field>
std::optional<std::vector<std::size_t>> matched(std::span<const Field> a, std::span<const Field> b,
                                                bool in_order) {
    if (a.size() != b.size()) return std::nullopt;
    std::vector<std::size_t> found(a.size());
    std::unordered_map<std::string_view, std::size_t> by_name;
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t j = i;
        if (a[i].text != b[i].text) {
            if (in_order) return std::nullopt;
            if (by_name.empty()) {
                for (std::size_t k = 0; k < b.size(); ++k)
                    by_name.emplace(b[k].text, k);
            }
            const auto there = by_name.find(a[i].text);
            if (there == by_name.end()) return std::nullopt;
            j = there->second;
        }
        if (!are_alike(a[i], b[j])) return std::nullopt;
        found[i] = j;
    }
    return found;
}

// The fields of metadata, with their data where it was kept. Nothing where one is not for a list:
// labels, particles, and elements that must be decoded. The directory outlives them.
std::optional<std::vector<ListedField>> fields_of(const Directory& directory, bool has_data);

// The arrays of files as they lie there.
struct FieldsOfFiles {
    std::vector<ListedField> fields;
    std::deque<std::string> names;  // which `text` is of; addresses stay
    struct Texts {
        bool there = false;
        std::vector<std::pair<std::string, std::string>> texts;
    };
    std::vector<Texts> texts;                           // of each file
    std::vector<std::shared_ptr<InputFile>> in_memory;  // of the files, those that were read whole
};
// files: as read_plain_files() gives them. names: of each file, what its arrays' own names come
// after. unique: false: several fields may have one name. Nothing where one is not for a list:
// files that are not plain or hold no arrays, labels, fields without a name, and names that are
// there twice.
std::optional<FieldsOfFiles> fields_of(std::vector<std::optional<PlainFile>> files,
                                       std::span<const std::string> names, bool unique);

// What the fields of a list share.
struct ListedFiles {
    MetadataFile* metadata = nullptr;    // of its fields; null: they have none
    bool has_data = true;                // false: only the metadata was kept
    std::span<const std::string> paths;  // of the data
};

// How lists hold files that were read whole with their headers.
using FilesInMemory = std::span<const std::shared_ptr<InputFile>>;

// The sources of both lists' elements. The lists outlive them.
class ListSources {
   public:
    // fields: of both lists together, at most.
    ListSources(std::size_t fields, CacheUse cache);
    // Elements in these files are taken from memory, unless reads are to go around the page cache.
    void take_from(FilesInMemory files);
    FieldSide side(const ListedFiles& list, const ListedField& field);

   private:
    CacheUse cache_;
    std::shared_ptr<OpenFiles> open_files_ = std::make_shared<OpenFiles>();
    std::vector<MemorySource> memory_;  // reserved: addresses stay
    std::deque<LaterSource> files_;     // addresses stay
    std::vector<std::unique_ptr<DeviceSource>> devices_;
};

}  // namespace twinrun
