// The metadata file: the trees and residues of one rank's fields at one step. spec/metadata.md
// describes its bytes.
//
// Reading trusts nothing: the header and the directory are checked whole before use, every size
// against the file's, and every page of a section against its checksum when it is read. A newer
// version is refused.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.hpp"
#include "base/once.hpp"
#include "digest/digest.hpp"
#include "digest/sums.hpp"
#include "element/dtype.hpp"
#include "platform/file_io.hpp"
#include "tree/layout.hpp"
#include "tree/walk.hpp"

namespace twinrun {

inline constexpr std::uint32_t kMetadataVersion = 4;  // the newest; see required_version()
inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kPageBytes = 4096;  // what one checksum covers
// Element bytes that one data checksum covers.
inline constexpr std::size_t kDataSumBytes = 1 << 20;
inline constexpr std::size_t kLargestDirectory = 1 << 28;
inline constexpr std::size_t kLongestName = 1 << 16;  // bytes
inline constexpr std::size_t kMostDimensions = 32;
inline constexpr const char* kMetadataSuffix = ".twm";

// Items readable from a file without a format library.
struct Extent {
    std::uint32_t file = 0;    // index into data_files
    std::uint64_t offset = 0;  // bytes
    std::uint64_t stride = 0;  // bytes from one item to the next
    std::uint64_t count = 0;   // items
    bool operator==(const Extent&) const = default;
};

// A file that holds elements, as it was when the metadata was made.
struct DataFile {
    std::string path;  // relative to the folder of the metadata file
    FileStamp stamp;
};

enum class Section : std::uint8_t {
    tree = 0,  // nodes, root first
    // Fine digests, a u64 a chunk; empty for published digests and where coarse_shift is 0.
    fine = 1,
    residues = 2,   // chunk after chunk
    data_sums = 3,  // XXH3-64 of every 1 MiB of element bytes in order
    // What the field adds to the digests of the whole array: bucket, coarse, fine, a u64 each.
    sums = 4,
};
inline constexpr std::size_t kSections = 5;

struct SectionPlace {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    // XXH3-64 of each page of the section, ceil(length / 4096) of them
    std::uint64_t sums_offset = 0;
    std::uint64_t sums_checksum = 0;  // XXH3-64 of those
};

// Order of a multi-dimensional field's elements in the stream that is digested.
enum class ArrayOrder : std::uint8_t { row_major = 0, column_major = 1 };

// What the sums describe: nothing, the global array by place, or particles by ID.
enum class SumsKind : std::uint8_t { none = 0, place = 1, ids = 2 };

struct SumsFacts {
    SumsKind kind = SumsKind::none;
    std::uint8_t height = 0;  // a bucket is 2^height chunks
    std::uint64_t buckets = 0;
    std::uint64_t smallest_id = 0;  // of this rank's rows
    std::uint64_t largest_id = 0;
    bool operator==(const SumsFacts&) const = default;
};

struct FieldMetadata {
    std::string name;
    DType dtype = DType::f32;
    ByteOrder byte_order = ByteOrder::little;
    ArrayOrder order = ArrayOrder::row_major;
    std::vector<std::uint64_t> shape;  // of items
    // Place in the global array of all ranks; both empty: none given.
    std::vector<std::uint64_t> global_shape;
    std::vector<std::uint64_t> global_offset;
    // Name of the field with the IDs of this one's rows (of itself: its own name); empty: none.
    std::string key;
    SumsFacts sums;
    DigestSettings settings;
    ElementCounts counts;
    // Largest finite |x| among sampled elements: for warnings, not for proofs.
    double largest_sampled = 0;
    std::vector<Extent> extents;  // empty: the elements are decoded by a reader of `format`
    std::string format;
    std::array<SectionPlace, kSections> sections{};

    [[nodiscard]] std::uint64_t items() const;  // product of shape; checked when decoded
    [[nodiscard]] std::uint64_t scalars() const { return items() * scalars_per_item(dtype); }
    [[nodiscard]] std::uint64_t data_bytes() const { return items() * item_bytes(dtype); }
    [[nodiscard]] ChunkShape chunking() const {
        return chunk_shape(scalar_type(dtype), settings.chunk_bytes, settings.rule.residue_bits);
    }
    [[nodiscard]] std::uint64_t chunks() const;
    // A part of something larger, by place or by ID: it may have sums.
    [[nodiscard]] bool partial() const {
        return !key.empty() || (!global_shape.empty() && global_shape != shape);
    }
    [[nodiscard]] TreeLayout tree() const { return {chunks()}; }
    [[nodiscard]] std::uint64_t section_bytes(Section section) const;  // what the settings imply
    [[nodiscard]] const SectionPlace& place(Section section) const {
        return sections[static_cast<std::size_t>(section)];
    }
};

struct Directory {
    std::uint32_t version = 1;  // see required_version()
    std::int64_t step = 0;
    std::uint32_t rank = 0;
    // Code of what the file system says of the data files; 0: not asked for.
    std::uint64_t status = 0;
    std::vector<DataFile> data_files;
    std::vector<FieldMetadata> fields;
};

// Where the residues of a metadata file's fields are. A record keeps those of a captured step in
// the step's difference: then equal ones are there once. The file is the same without them, and
// says of itself what it is with them (spec/metadata.md, section 1).
enum class ResiduePlace : std::uint8_t { in_file, elsewhere };

// The version that a file of these fields needs: 4 if some rule is words or integers, otherwise 3
// if some rule is binary32, otherwise 2 if a field has sums or is a part of something larger,
// otherwise 1. Earlier readers take all that they know.
[[nodiscard]] std::uint32_t required_version(std::span<const FieldMetadata> fields);

// Header and directory, to and from bytes. decode never reads outside `bytes`, whatever they hold;
// file_bytes is the size of the whole file. Errors name no path: the caller adds it.
std::vector<std::byte> encode_directory(const Directory& directory, std::uint64_t file_bytes);
struct HeaderFacts {
    std::uint32_t version = 0;
    std::uint64_t bytes = 0;  // of the whole file
    std::uint64_t directory_bytes = 0;
    std::uint64_t directory_checksum = 0;
    std::uint64_t status = 0;
};
inline constexpr std::array<unsigned char, 8> kMetadataMagic = {0x89, 'T', 'W', 'M', '\r', '\n', 0x1A, '\n'};
// residues: elsewhere: file_bytes may be less than what the header says, HeaderFacts::bytes.
Result<HeaderFacts> decode_header(std::span<const std::byte> header, std::uint64_t file_bytes,
                                  ResiduePlace residues = ResiduePlace::in_file);
// The error of a file that has other bytes than its header says.
Error wrong_size(std::uint64_t should, std::uint64_t has);
Result<Directory> decode_directory(std::span<const std::byte> directory, std::uint64_t file_bytes,
                                   std::uint32_t version);

// The stretch of a whole metadata file that can lie elsewhere: from the first residues to the end
// of the last ones' page. Empty: there are none, or something else is among them.
[[nodiscard]] Range residues_apart(const Directory& directory, std::uint64_t file_bytes);

// A metadata file open for reading. Thread-safe.
class MetadataFile {
   public:
    // folder: where the path may be looked up; null: none is held. Residues that are elsewhere
    // cannot be read before take_residues_from().
    static Result<std::shared_ptr<MetadataFile>> open(const std::string& path,
                                                      const HeldFolder* folder = nullptr);

    [[nodiscard]] const Directory& directory() const { return directory_; }
    [[nodiscard]] const std::string& path() const { return file_->path(); }
    [[nodiscard]] InputFile& file() const { return *file_; }
    // The stretch of the whole file that lies elsewhere: all residues, and nothing else. Empty:
    // nothing does.
    [[nodiscard]] const Range& elsewhere() const { return elsewhere_; }
    [[nodiscard]] std::uint64_t whole_bytes() const { return file_->size() + elsewhere_.size(); }
    // rest: these bytes. Before anything of them is read, by one thread.
    void take_residues_from(std::shared_ptr<InputFile> rest) { rest_ = std::move(rest); }
    // Whether the residues can be read: false: they are elsewhere, and nobody said where.
    [[nodiscard]] bool has_residues() const { return elsewhere_.size() == 0 || rest_ != nullptr; }
    // Where the bytes from `offset` of the whole file on can be read.
    struct Place {
        InputFile* file = nullptr;  // null: elsewhere, and nobody said where
        std::uint64_t offset = 0;
    };
    [[nodiscard]] Place place_of(std::uint64_t offset) const {
        if (offset < elsewhere_.begin || elsewhere_.size() == 0) return {file_.get(), offset};
        if (offset < elsewhere_.end) return {rest_.get(), offset - elsewhere_.begin};
        return {file_.get(), offset - elsewhere_.size()};
    }
    // Number of the field of a name; looking for all of them takes time linear in their number.
    [[nodiscard]] std::optional<std::size_t> find(const std::string& field) const;
    // Absolute or working-directory-relative path of a data file.
    [[nodiscard]] std::string data_path(std::uint32_t file) const;
    // A data file whose time says that it was changed, exchanged, copied or touched since the
    // metadata was made: its content tells. Errors: stale: a data file has grown since the metadata
    // was made; damaged: one is truncated, or has grown in a history; not_found.
    Result<std::optional<std::string>> touched_data_file(const HeldFolder* folder = nullptr) const;
    // As touched_data_file(), and such a file is an error too (stale).
    Result<> check_data_files(const HeldFolder* folder = nullptr) const;
    // Whether a captured history has this metadata: its data is of no format.
    [[nodiscard]] bool of_history() const;
    // The error for a data file of a history with other content than the metadata says.
    [[nodiscard]] Error is_not_of(const std::string& data) const;

    // Checksums of a section's pages, read and checked at first use.
    Result<std::span<const std::uint64_t>> page_sums(std::size_t field, Section section);
    // Error (damaged) unless the pages from `first_page` on have the stored checksums; bytes: whole
    // pages, the last one of the section may be short.
    Result<> check_pages(std::size_t field, Section section, std::uint64_t first_page,
                         std::span<const std::byte> bytes);
    // Bytes [offset, offset + to.size()) of a section, checked.
    Result<> read(std::size_t field, Section section, std::uint64_t offset, std::span<std::byte> to);
    // A field's sums by ascending bucket, checked.
    Result<std::vector<PartialSum>> sums(std::size_t field);
    // Residues of scalars [first, first + to.size()), one a byte.
    Result<> residues(std::size_t field, std::uint64_t first, std::span<std::uint8_t> to);
    // Lets storage bring these bytes, where they are not read with all others.
    void will_need(std::uint64_t offset, std::uint64_t bytes) const;
    // Bytes read from the file so far, for the report: of a file that was read at once, those that
    // were needed. Of a field: without those of the directory.
    [[nodiscard]] std::uint64_t bytes_read() const;
    [[nodiscard]] std::uint64_t bytes_read(std::size_t field) const;
    // XXH3-64 of the header
    [[nodiscard]] std::uint64_t header_checksum() const { return header_checksum_; }

   private:
    [[nodiscard]] Error is_older_than(const std::string& data) const;
    [[nodiscard]] bool is_touched(const DataFile& known, const FileStamp& now) const;
    MetadataFile() = default;
    // Bytes of the file, not checked: where they are in memory, or in `own` where they were read
    // for this.
    Result<std::span<const std::byte>> fetch(std::uint64_t offset, std::size_t bytes,
                                             std::vector<std::byte>& own);
    Result<> find_elsewhere(std::uint64_t whole);
    struct Sums;
    std::shared_ptr<InputFile> file_;
    Range elsewhere_{};
    std::shared_ptr<InputFile> rest_;  // what lies elsewhere; null: nothing, or it is not at hand
    Directory directory_;
    std::uint64_t header_checksum_ = 0;
    std::shared_ptr<Sums> sums_;
};

// Nodes of a field's tree, for walk_trees. counts the bytes that it read.
class MetadataNodes final : public NodeSource {
   public:
    MetadataNodes(MetadataFile& file, std::size_t field) : file_(file), field_(field) {}
    void announce(std::span<const Range> positions) override;
    Result<> read(std::span<const Range> positions, std::vector<std::uint64_t>& words) override;

   private:
    [[nodiscard]] std::size_t node_bytes() const;
    // Ranges [first, returned) lie close enough to be one read.
    [[nodiscard]] std::size_t run_of(std::span<const Range> positions, std::size_t first) const;
    MetadataFile& file_;
    std::size_t field_;
};

// Whether the file of this name, which is not a link, begins as metadata files do: then twinrun
// wrote it, even if the rest is damaged.
bool is_metadata_file(const std::string& path);

// Estimate of the memory that a writer of these fields holds until it is finished.
[[nodiscard]] std::uint64_t writer_bytes(std::span<const FieldMetadata> fields,
                                         ResiduePlace residues = ResiduePlace::in_file);

// The stretch of a metadata file that has all its residues. Empty where no field has residues.
struct MetadataRest {
    AlignedBytes bytes;  // empty: residues were never written, only their checksums
    std::uint64_t size = 0;
};

// Where the residues of fields lie in that stretch, one field after another. It begins on a page if
// a field has a page of residues or more.
class ResidueLayout {
   public:
    // Takes the next field's residues; returns where they begin.
    std::uint64_t add(std::uint64_t bytes);
    [[nodiscard]] std::uint64_t end() const { return end_; }
    // Bytes of the stretch if no more fields come: whole pages.
    [[nodiscard]] std::uint64_t size() const;

   private:
    std::uint64_t end_ = 0;
};

// Writes a metadata file: declare all fields, write their sections in any order and from any
// thread, commit. Until then only a temporary file exists; without a commit it is removed.
class MetadataWriter {
   public:
    // The fields' sections are laid out here; `directory.fields[i].sections` is ignored. residues:
    // elsewhere: they stay in memory, for take_residues().
    static Result<std::unique_ptr<MetadataWriter>> create(FileSystem& system, const std::string& path,
                                                          Directory directory,
                                                          ResiduePlace residues = ResiduePlace::in_file);
    ~MetadataWriter();

    // Metadata that is there under this name is replaced by commit(). Without it, and where
    // something else is there: an error.
    void may_replace() { may_replace_ = true; }
    [[nodiscard]] Directory& directory() { return directory_; }
    // Part of a section. offset is a multiple of kPageBytes, and so is the size unless the part
    // ends the section. Thread-safe for disjoint parts.
    Result<> write(std::size_t field, Section section, std::uint64_t offset,
                   std::span<const std::byte> bytes);
    // With residues elsewhere, in place of writing those of a field: XXH3 of each of its pages, the
    // last of which may be short. offset: where the caller has them in the stretch. Error:
    // internal: they belong to another place, or are others in number.
    Result<> write_residue_checksums(std::size_t field, std::uint64_t offset,
                                     std::span<const std::uint64_t> checksums);
    // A field's sums, at the end of the file: how many there are is known last. Not for a field
    // whose SumsFacts have buckets already (those are laid out). Once a field.
    Result<> write_sums(std::size_t field, const SumsFacts& facts, std::span<const PartialSum> sums);
    // Everything was written: checksums, directory, sync, rename, sync of the folder. Reads the
    // directory back first.
    Result<> commit();
    // The same without the sync of the folder, for callers that rename the folder itself next.
    Result<> finish();
    // The same without any sync: a file that need not survive a crash.
    Result<> finish_temporary();
    // After these, with residues elsewhere: what the file lacks of the whole.
    [[nodiscard]] MetadataRest take_residues() { return {std::move(rest_), cut_.size()}; }

   private:
    MetadataWriter() = default;
    std::uint64_t lay_out_residues(Directory& directory, std::uint64_t end);
    std::byte* rest();
    void gather(std::size_t field, std::size_t part, std::uint64_t begin, std::uint64_t end);
    Result<> put(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes);
    Result<> write_out();
    Result<> commit_file();
    FileSystem* system_ = nullptr;
    std::string path_;
    std::string temporary_;
    Directory directory_;
    std::uint64_t file_bytes_ = 0;  // of the whole
    ResiduePlace residues_ = ResiduePlace::in_file;
    Range cut_{};        // what the file lacks of the whole; empty: nothing
    AlignedBytes rest_;  // its bytes, from the first write on
    Once rest_made_;
    std::unique_ptr<OutputFile> output_;
    std::vector<std::byte> image_;  // of a small file, until it is written whole
    // Of small fields that lie one behind the other in a larger file: likewise.
    struct Gathered {
        std::uint64_t offset = 0;
        std::uint64_t size = 0;
        std::vector<std::byte> bytes;
    };
    std::vector<Gathered> gathered_;
    std::uint64_t gathered_bytes_ = 0;
    // For each field the places there of what is no residue, and of its residues, or kNotGathered.
    std::vector<std::array<std::uint32_t, 2>> gathered_in_;
    std::vector<std::array<std::vector<std::uint64_t>, kSections>> sums_;
    bool may_replace_ = false;
    bool finished_ = false;
};

}  // namespace twinrun
