// SPDX-License-Identifier: MIT
#include "preload/launcher/explore/result.h"

#include <stdio.h>

namespace fiberthread {
namespace {

// Text of XML 1.0, which has no way to write most control characters.
std::string in_xml(const std::string& text) {
  std::string x;
  for (unsigned char c : text) {
    if (c == '<') x += "&lt;";
    else if (c == '>') x += "&gt;";
    else if (c == '&') x += "&amp;";
    else if (c == '"') x += "&quot;";
    else if (c < ' ' && c != '\n' && c != '\t') x += '?';
    else x += static_cast<char>(c);
  }
  return x;
}

std::string escaped(const std::string& text) {
  std::string e;
  for (unsigned char c : text) {
    char code[8];
    if (c == '"' || c == '\\') e += '\\';
    if (c < ' ') {
      snprintf(code, sizeof code, "\\u%04x", c);
      e += code;
    } else {
      e += static_cast<char>(c);
    }
  }
  return e;
}

}  // namespace

std::string tail(const std::string& text, size_t lines) {
  size_t at = text.size();
  if (at && text[at - 1] == '\n') at--;
  while (at && lines) {
    size_t before = text.rfind('\n', at - 1);
    if (before == std::string::npos) {
      at = 0;
      break;
    }
    at = before;
    lines--;
  }
  return text.substr(at ? at + 1 : 0);
}

std::string indented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    out += "    " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

void put_json(const Result& r) {
  printf(
      "{\"failed\":%s,\"schedules\":%lu,\"distinct\":%lu,\"seconds\":%.3f,\"longest\":%lu,\"forked\":%lu,\"fingerprint\":\"%016lx\","
      "\"all_done\":%s,\"failures\":"
      "[",
      r.failures.empty() ? "false" : "true", static_cast<unsigned long>(r.runs), static_cast<unsigned long>(r.distinct), r.seconds,
      static_cast<unsigned long>(r.longest), static_cast<unsigned long>(r.forked), static_cast<unsigned long>(r.fingerprint),
      r.all_done ? "true" : "false");
  const char* comma = "";
  for (auto& f : r.failures) {
    printf("%s{\"kind\":\"%s\",\"detail\":%d,\"place\":\"%s\",\"file\":\"%s\"}", comma, kKinds[static_cast<int>(f.verdict.kind)],
           f.verdict.detail, escaped(f.place).c_str(), escaped(f.file).c_str());
    comma = ",";
  }
  puts("]}");
}

void put_summary(const Result& r) {
  printf("%lu schedules in %.1f s (%.0f a second), %lu distinct, at most %lu points each: %s\n", static_cast<unsigned long>(r.runs),
         r.seconds, static_cast<double>(r.runs) / r.seconds, static_cast<unsigned long>(r.distinct), static_cast<unsigned long>(r.longest),
         r.failures.empty() ? "no failure"
                            : (std::to_string(r.failures.size()) + (r.failures.size() == 1 ? " failure" : " failures")).c_str());
}

bool write_junit(const Result& r, const std::string& path, const std::vector<std::string>& command) {
  FILE* f = fopen(path.c_str(), "we");
  if (!f) return false;
  std::string name;
  for (auto& a : command) name += (name.empty() ? "" : " ") + a;
  fprintf(f,
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"fiberthread explore\" tests=\"1\" failures=\"%d\" errors=\"0\" "
          "time=\"%.3f\">\n  <testcase classname=\"explore\" name=\"%s\" time=\"%.3f\">\n",
          !r.failures.empty(), r.seconds, in_xml(name).c_str(), r.seconds);
  if (!r.failures.empty()) {
    std::string all;
    for (auto& v : r.failures) all += v.text;
    fprintf(f, "    <failure message=\"%s\">%s</failure>\n", in_xml(words_of(r.failures[0].verdict)).c_str(), in_xml(all).c_str());
  }
  fprintf(f, "    <system-out>%lu schedules, %lu distinct</system-out>\n  </testcase>\n</testsuite>\n", static_cast<unsigned long>(r.runs),
          static_cast<unsigned long>(r.distinct));
  return fclose(f) == 0;
}

}  // namespace fiberthread
