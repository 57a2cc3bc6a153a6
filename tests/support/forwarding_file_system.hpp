// A FileSystem, the real one or another, of which a test replaces single operations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "platform/file_io.hpp"

namespace twinrun::testing {

class ForwardingFileSystem : public FileSystem {
   public:
    explicit ForwardingFileSystem(FileSystem& inner = posix_file_system()) : inner_(inner) {}
    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t bytes) override {
        return inner_.create(path, bytes);
    }
    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override {
        return inner_.open_append(path, size);
    }
    Result<> rename(const std::string& from, const std::string& to) override {
        return inner_.rename(from, to);
    }
    Result<> replace(const std::string& from, const std::string& to) override {
        return inner_.replace(from, to);
    }
    Result<> sync_folder(const std::string& path) override { return inner_.sync_folder(path); }
    Result<> make_folders(const std::string& path) override { return inner_.make_folders(path); }
    Result<bool> make_marked_folder(const std::string& path, const std::string& marker) override {
        return inner_.make_marked_folder(path, marker);
    }
    Result<> remove(const std::string& path) override { return inner_.remove(path); }
    Result<> remove_empty_folder(const std::string& path) override {
        return inner_.remove_empty_folder(path);
    }
    Result<> truncate(const std::string& path, std::uint64_t size) override {
        return inner_.truncate(path, size);
    }
    Result<std::unique_ptr<NewFiles>> open_new(const std::string& path) override {
        return inner_.open_new(path);
    }

   private:
    FileSystem& inner_;
};

}  // namespace twinrun::testing
