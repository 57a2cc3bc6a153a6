#include "capture/step_files.hpp"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "base/checksum.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

std::int64_t time_now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

Result<std::unique_ptr<StepFiles>> StepFiles::create(const HistoryWriter& writer, std::int64_t step,
                                                     std::string folder,
                                                     std::shared_ptr<const StepLayout> layout,
                                                     const std::string& shared_file) try {
    FileSystem& system = writer.system();
    std::unique_ptr<StepFiles> files(new StepFiles(system));
    files->folder_ = (fs::path(writer.path()) / folder).string();
    files->layout_ = std::move(layout);
    RankStep& entry = files->step_;
    entry.folder = std::move(folder);
    entry.files.rank = writer.rank();
    entry.files.metadata = rank_name(writer.rank()) + kMetadataSuffix;
    TWR_CHECK(writer.make_folder(entry.folder));
    Directory directory;
    directory.step = step;
    directory.rank = writer.rank();
    directory.fields = files->layout_->fields;
    if (files->layout_->recorded) {
        files->bytes_ = files->image_.reserve(files->layout_->file_bytes);
        // The file that a record gives back will have this time.
        std::string name = rank_name(writer.rank()) + ".data";
        const std::int64_t time = own_time(time_now(), temporary_name(name));
        directory.data_files.push_back({std::move(name), {files->layout_->file_bytes, time}});
    } else if (files->layout_->shared) {
        files->bytes_ = files->image_.reserve(files->layout_->file_bytes);
        entry.files.data = shared_file;
        entry.files.data_bytes = files->layout_->file_bytes;
        entry.files.shared = true;
        directory.data_files.push_back({shared_file, {}});
    } else if (files->layout_->keep_data) {
        entry.files.data = rank_name(writer.rank()) + ".data";
        entry.files.data_bytes = files->layout_->file_bytes;
        const std::string path = (fs::path(files->folder_) / entry.files.data).string();
        files->temporary_ = temporary_name(path);
        TWR_TRY(files->data_, system.create(files->temporary_, files->layout_->file_bytes));
        directory.data_files.push_back({entry.files.data, {}});
    }
    TWR_TRY(files->metadata_,
            MetadataWriter::create(system, (fs::path(files->folder_) / entry.files.metadata).string(),
                                   std::move(directory), files->layout_->residues()));
    return files;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to write a step"};
}

// OutputFile and MetadataWriter remove files under temporary names
StepFiles::~StepFiles() = default;

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
        TWR_TRY(metadata_->directory().data_files[0].stamp, close_at_own_time(*data_, temporary_));
    }
    TWR_CHECK(write_digests(digests));
    TWR_CHECK(metadata_->finish());
    if (data_ != nullptr) TWR_CHECK(system_.rename(temporary_, data));
    return finish_metadata();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of a step"};
}

Result<> StepFiles::write_digests(std::vector<FieldDigests>& digests) {
    for (std::size_t i = 0; i < digests.size(); ++i)
        TWR_CHECK(digests[i].write(*metadata_, i));
    return success();
}

Result<RankStep> StepFiles::finish_shared(const SharedPlace& place) try {
    const std::string data = (fs::path(folder_) / step_.files.data).string();
    Directory& directory = metadata_->directory();
    TWR_TRY(directory.data_files[0].stamp, stamp_of(data));
    if (directory.data_files[0].stamp.size != place.file_bytes) {
        return Error{ErrorCode::io, data + ": has " + std::to_string(directory.data_files[0].stamp.size) +
                                        " bytes on this rank's storage, but " +
                                        std::to_string(place.file_bytes) +
                                        " bytes were written: do all ranks see the same storage?"};
    }
    for (FieldMetadata& field : directory.fields) {
        for (Extent& extent : field.extents)
            extent.offset += place.offset;
    }
    step_.files.offset = place.offset;
    step_.files.file_bytes = place.file_bytes;
    TWR_CHECK(metadata_->finish());
    return finish_metadata();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the metadata of a step"};
}

Result<RankStep> StepFiles::finish_metadata() {
    TWR_CHECK(system_.sync_folder(folder_));
    TWR_TRY(auto written, InputFile::open((fs::path(folder_) / step_.files.metadata).string()));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(written->read_at(0, header));
    step_.files.metadata_bytes = written->size();
    step_.files.header_checksum = xxh3(header);
    return step_;
}

}  // namespace twinrun
