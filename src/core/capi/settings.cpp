#include <utility>

#include "capi/handles.hpp"
#include "capi/status.hpp"

using namespace twinrun;
using namespace twinrun::capi;

extern "C" {

int twr_settings_create(twr_settings** settings) {
    return answer("twr_settings_create", [&]() -> Result<twr_status> {
        TWR_CHECK(given(settings, "settings"));
        *settings = nullptr;
        *settings = new twr_settings;
        return TWR_OK;
    });
}

int twr_settings_set(twr_settings* settings, const char* name, const char* value) {
    return answer("twr_settings_set", [&]() -> Result<twr_status> {
        TWR_CHECK(given(settings, "settings"));
        TWR_CHECK(given(name, "name"));
        if (value == nullptr) {
            return Error{ErrorCode::invalid_argument, std::string("the value of ") + name + " is NULL"};
        }
        TWR_CHECK(settings->values.set(name, value));
        return TWR_OK;
    });
}

int twr_settings_load(twr_settings* settings, const char* path) {
    return answer("twr_settings_load", [&]() -> Result<twr_status> {
        TWR_CHECK(given(settings, "settings"));
        TWR_CHECK(given(path, "path"));
        SessionSettings loaded = settings->values;  // all of the file, or nothing
        TWR_CHECK(loaded.load(path));
        settings->values = std::move(loaded);
        return TWR_OK;
    });
}

void twr_settings_destroy(twr_settings* settings) { delete settings; }

}  // extern "C"
