#include "support/fake_device/streams.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

namespace twinrun::fake {

namespace {

std::map<StreamHandle, std::shared_ptr<Stream>> streams;
std::vector<std::shared_ptr<Stream>> dropped;    // with work in them that goes on
std::array<std::string, kMostDevices> troubles;  // of kernels, told to whoever waits

void for_each_stream(int device, const std::function<void(Stream&)>& what) {
    std::vector<std::shared_ptr<Stream>> all = dropped;
    for (const auto& [handle, stream] : streams)
        all.push_back(stream);
    all.push_back(stream_of(device, nullptr));
    for (const auto& stream : all) {
        if (stream->device == device) what(*stream);
    }
    std::erase_if(dropped, [](const auto& stream) { return stream->work.empty(); });
}

}  // namespace

std::shared_ptr<Stream> stream_of(int device, StreamHandle handle) {
    static std::array<std::shared_ptr<Stream>, kMostDevices> defaults;
    if (handle == nullptr) {
        auto& stream = defaults[static_cast<std::size_t>(device)];
        if (stream == nullptr) stream = std::make_shared<Stream>(Stream{device, {}, 0, 0});
        return stream;
    }
    const auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
}

StreamHandle add_stream(int device) {
    auto made = std::make_shared<Stream>(Stream{device, {}, 0, 0});
    const StreamHandle handle = made.get();
    streams[handle] = std::move(made);
    return handle;
}
void drop_stream(StreamHandle handle) {
    const auto found = streams.find(handle);
    if (found == streams.end()) {
        std::fprintf(stderr, "fake device: a stream that was not made here is dropped\n");
        std::abort();
    }
    if (!found->second->work.empty()) dropped.push_back(found->second);
    streams.erase(found);
}
std::uint64_t stream_count() { return streams.size(); }

void finish_all(int device) {
    for_each_stream(device, [](Stream& stream) { stream.finish(); });
}

void abandon(int device) {
    for_each_stream(device, [](Stream& stream) {
        stream.work.clear();
        stream.done = stream.put;
    });
}

void trouble(int device, const std::string& text) {
    std::string& all = troubles[static_cast<std::size_t>(device)];
    if (all.empty()) all = text;
    std::fprintf(stderr, "fake device: cuda:%d: %s\n", device, text.c_str());
}
DeviceStatus after_waiting(int device) {
    std::string& text = troubles[static_cast<std::size_t>(device)];
    if (text.empty()) return {};
    return failure(ErrorCode::internal, device, std::exchange(text, {}));
}

DeviceStatus push(int device, StreamHandle handle, std::function<void()> what) {
    const auto stream = stream_of(device, handle);
    if (stream == nullptr || stream->device != device)
        return failure(ErrorCode::internal, device, "a stream that is not one of this device");
    stream->push(std::move(what));
    return {};
}

}  // namespace twinrun::fake
