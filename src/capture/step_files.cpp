#include "capture/step_files.hpp"

#include <cstring>
#include <filesystem>
#include <new>

#include "base/checksum.hpp"

namespace twinrun {

namespace fs = std::filesystem;

Result<std::unique_ptr<StepFiles>> StepFiles::create(const HistoryWriter& writer, std::int64_t step,
                                                     std::string folder,
                                                     std::shared_ptr<const StepLayout> layout) try {
    FileSystem& system = writer.system();
    std::unique_ptr<StepFiles> files(new StepFiles(system));
    files->folder_ = (fs::path(writer.path()) / folder).string();
    files->layout_ = std::move(layout);
    RankStep& entry = files->step_;
    entry.folder = std::move(folder);
    entry.files.rank = writer.rank();
    entry.files.metadata = rank_name(writer.rank()) + kMetadataSuffix;
    TWR_CHECK(system.make_folders(files->folder_));
    Directory directory;
    directory.step = step;
    directory.rank = writer.rank();
    directory.fields = files->layout_->fields;
    if (files->layout_->recorded) {
        files->bytes_ = files->image_.reserve(files->layout_->file_bytes);
        directory.data_files.push_back({rank_name(writer.rank()) + ".data", {files->layout_->file_bytes, 0}});
    } else if (files->layout_->keep_data) {
        entry.files.data = rank_name(writer.rank()) + ".data";
        entry.files.data_bytes = files->layout_->file_bytes;
        const std::string path = (fs::path(files->folder_) / entry.files.data).string();
        TWR_TRY(files->data_, system.create(path + ".tmp", files->layout_->file_bytes));
        directory.data_files.push_back({entry.files.data, {}});
    }
    TWR_TRY(files->metadata_,
            MetadataWriter::create(system, (fs::path(files->folder_) / entry.files.metadata).string(),
                                   std::move(directory)));
    return files;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to write a step"};
}

StepFiles::~StepFiles() = default;  // of their own accord the files remove what is under a temporary name

Result<> StepFiles::write_data(std::uint64_t offset, std::span<const std::byte> bytes) {
    if (bytes_ != nullptr) {
        std::memcpy(bytes_ + offset, bytes.data(), bytes.size());
        return success();
    }
    return data_->write_at(offset, bytes);
}

Result<> StepFiles::write_residues(std::size_t field, std::uint64_t offset,
                                   std::span<const std::byte> bytes) {
    return metadata_->write(field, Section::residues, offset, bytes);
}

Result<RankStep> StepFiles::finish(std::vector<FieldDigests>& digests) try {
    const std::string data = (fs::path(folder_) / step_.files.data).string();
    if (data_ != nullptr) {
        TWR_CHECK(data_->sync());
        TWR_CHECK(data_->close());
        TWR_TRY(metadata_->directory().data_files[0].stamp, stamp_of(data + ".tmp"));
    }
    for (std::size_t i = 0; i < digests.size(); ++i)
        TWR_CHECK(digests[i].write(*metadata_, i));
    TWR_CHECK(metadata_->finish());
    if (data_ != nullptr) TWR_CHECK(system_.rename(data + ".tmp", data));
    TWR_CHECK(system_.sync_folder(folder_));
    TWR_TRY(auto written, InputFile::open((fs::path(folder_) / step_.files.metadata).string()));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(written->read_at(0, header));
    step_.files.metadata_bytes = written->size();
    step_.files.header_checksum = xxh3(header);
    return step_;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of a step"};
}

}  // namespace twinrun
