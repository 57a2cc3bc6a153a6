#include "engine/pair_stream.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {

PairStream::Place* PairStream::place_of(int device) {
    const auto [known, is_new] = places_.try_emplace(device);
    Place& place = known->second;
    if (is_new) {
        place.device = device;
        DeviceWork work;
        work.array_a = work.array_b = device;
        const auto chosen = choose_place(choice_, work);
        if (chosen && chosen->devices == std::vector{device}) {
            place.name = device_names(chosen->devices);
            place.reason = chosen->reason;
        }
    }
    return place.name.empty() ? nullptr : &place;
}

bool PairStream::is_full(int device) const {
    const auto known = places_.find(device);
    return known != places_.end() && known->second.under_way.size() >= kUnderWay;
}

void PairStream::add(std::size_t number, int device, const DevicePair& pair) {
    Place* const place = place_of(device);
    if (place == nullptr) {
        failed_.push_back(number);
        return;
    }
    place->gathered.numbers.push_back(number);
    place->gathered.pairs.push_back(pair);
    place->bytes += pair.bytes();
    const std::size_t count = place->gathered.pairs.size();
    if (count < place->next || (place->bytes < kEnoughBytes && count < kMostTimes * place->next)) return;
    start(*place);
    place->next = std::min(2 * place->next, kMost);
}

void PairStream::start() {
    for (auto& [device, place] : places_)
        start(place);
}

void PairStream::start(Place& place) {
    if (place.gathered.pairs.empty()) return;
    while (place.under_way.size() >= kUnderWay)
        take_first(place);
    Launch launch = std::exchange(place.gathered, {});
    place.bytes = 0;
    // The batch before ends first: both at once would each take longer.
    const DevicePairs* before = place.under_way.empty() ? nullptr : place.under_way.back().batch.get();
    auto started = DevicePairs::start(place.device, launch.pairs, before);
    if (started) {
        launch.batch = std::move(started).value();
        place.under_way.push_back(std::move(launch));
    } else {
        fail(launch, std::move(started).error());
    }
}

void PairStream::fail(const Launch& launch, Error why) {
    DeviceWorkspaces::release_all_idle();
    failed_.insert(failed_.end(), launch.numbers.begin(), launch.numbers.end());
    if (!error_) error_ = std::move(why);
}

bool PairStream::lead() {
    for (auto& [device, place] : places_) {
        for (const Launch& launch : place.under_way) {
            if (!launch.batch->lead()) return false;
        }
    }
    return failed_.empty();
}

bool PairStream::is_done() const {
    for (const auto& [device, place] : places_) {
        if (place.under_way.empty()) continue;
        // Batches of a device end in their order.
        const auto done = place.under_way.back().batch->is_done();
        if (done && !*done) return false;
    }
    return true;
}

void PairStream::take_first(Place& place) {
    Launch launch = std::move(place.under_way.front());
    place.under_way.pop_front();
    if (auto waited = launch.batch->wait(); !waited) {
        launch.batch = nullptr;
        fail(launch, std::move(waited).error());
        return;
    }
    double scalars = 0;
    for (const DevicePair& pair : launch.pairs)
        scalars += static_cast<double>(pair.scalars());
    take_({launch.numbers, launch.pairs, launch.batch.get(), &place.name, &place.reason,
           launch.batch->seconds() / scalars});
}

void PairStream::finish(const std::function<bool()>& goes_on) {
    start();
    // Devices take turns, as they work at the same time.
    for (bool any = true; any;) {
        any = false;
        for (auto& [device, place] : places_) {
            if (place.under_way.empty()) continue;
            if (!goes_on()) return;
            take_first(place);
            any = true;
        }
    }
    std::sort(failed_.begin(), failed_.end());
}

}  // namespace twinrun
