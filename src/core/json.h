// Small JSON documents (config.json, tokenizer.json, safetensors headers), parsed with bounded
// depth and without duplicate keys; errors name the file and the byte. Data files go through
// simdjson instead.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace snug {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// `origin` is the file name for error messages. Refuses nesting deeper than 64 and duplicate keys
// (kInput).
Json parse_json(std::string_view text, std::string_view origin);

}  // namespace snug
