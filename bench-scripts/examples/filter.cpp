// SPDX-License-Identifier: MIT
// An image filter, cut into jobs. It shows a loop over rows that becomes parallel by one call, parallel_for, which chooses the size of the
// parts. It also shows two stages that run side by side, with parallel_invoke.
//
//   build/examples/filter [--serial] [--radius N] [--times N] IN OUT    IN and OUT are PGM (P5) or PPM (P6); "-" is stdin or stdout
//   build/examples/filter --make WIDTHxHEIGHT OUT                       makes a picture to try it with
//   build/examples/filter --check [--radius N] IN                       filters it both ways and compares
//
// The filter: a Gaussian blur of this radius, and the edges of the blurred picture (Sobel) drawn dark over it.
#include <fiberthread/job_queue.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Image {
  size_t width = 0, height = 0, channels = 0;
  std::vector<uint8_t> bytes;
  void size(size_t w, size_t h, size_t c) {
    width = w, height = h, channels = c;
    bytes.assign(w * h * c, 0);
  }
  const uint8_t* row(size_t y) const { return &bytes[y * width * channels]; }
  uint8_t* row(size_t y) { return &bytes[y * width * channels]; }
};

[[noreturn]] static void fail(const char* what, const char* name) {
  std::fprintf(stderr, "filter: %s: %s\n", name, what);
  std::exit(1);
}

// Reads a number of a header, which may have comments in it.
static size_t number(FILE* f, const char* name) {
  int c;
  while ((c = std::fgetc(f)) == '#' || c == ' ' || c == '\n' || c == '\t' || c == '\r')
    if (c == '#')
      while (c != '\n' && c != EOF) c = std::fgetc(f);
  size_t n = 0;
  for (; c >= '0' && c <= '9' && n < 1000000; c = std::fgetc(f)) n = n * 10 + static_cast<size_t>(c - '0');
  if (n == 0) fail("is not a PGM or PPM of bytes", name);
  return n;
}

static Image read_image(const char* name) {
  FILE* f = std::strcmp(name, "-") ? std::fopen(name, "rb") : stdin;
  if (!f) fail("cannot be read", name);
  int p = std::fgetc(f), kind = std::fgetc(f);
  if (p != 'P' || (kind != '5' && kind != '6')) fail("is not a PGM or PPM of bytes", name);
  size_t width = number(f, name), height = number(f, name);
  if (number(f, name) != 255) fail("has not 255 as its largest value", name);
  if (width * height > 400'000'000) fail("is too large", name);
  Image image;
  image.size(width, height, kind == '6' ? 3 : 1);
  if (std::fread(image.bytes.data(), 1, image.bytes.size(), f) != image.bytes.size()) fail("is too short", name);
  if (f != stdin) std::fclose(f);
  return image;
}

static void write_image(const Image& image, const char* name) {
  FILE* f = std::strcmp(name, "-") ? std::fopen(name, "wb") : stdout;
  if (!f) fail("cannot be written", name);
  std::fprintf(f, "P%c\n%zu %zu\n255\n", image.channels == 3 ? '6' : '5', image.width, image.height);
  bool ok = std::fwrite(image.bytes.data(), 1, image.bytes.size(), f) == image.bytes.size();
  if ((f == stdout ? std::fflush(f) : std::fclose(f)) != 0 || !ok) fail("cannot be written", name);
}

// Runs a loop over rows. Only this makes the filter parallel.
static bool serial = false;
template <class Body>
static void for_rows(size_t rows, Body body) {
  if (serial) {
    for (size_t y = 0; y < rows; y++) body(y);
  } else {
    fiberthread::parallel_for(0, rows, body);
  }
}

static std::vector<float> gauss(int radius) {
  std::vector<float> weights;
  float sum = 0, sigma = static_cast<float>(radius) / 2 + 0.01f;
  for (int i = -radius; i <= radius; i++) weights.push_back(std::exp(-static_cast<float>(i * i) / (2 * sigma * sigma)));
  for (float w : weights) sum += w;
  for (float& w : weights) w /= sum;
  return weights;
}

static size_t clamp(long i, size_t n) { return i < 0 ? 0 : i >= static_cast<long>(n) ? n - 1 : static_cast<size_t>(i); }

static Image blur(const Image& in, int radius) {
  std::vector<float> weights = gauss(radius), middle(in.bytes.size());
  Image out;
  out.size(in.width, in.height, in.channels);
  size_t stride = in.width * in.channels;
  for_rows(in.height, [&](size_t y) {
    for (size_t x = 0; x < in.width; x++)
      for (size_t c = 0; c < in.channels; c++) {
        float sum = 0;
        for (int i = -radius; i <= radius; i++)
          sum += weights[static_cast<size_t>(i + radius)] * in.row(y)[clamp(static_cast<long>(x) + i, in.width) * in.channels + c];
        middle[y * stride + x * in.channels + c] = sum;
      }
  });
  for_rows(in.height, [&](size_t y) {
    for (size_t x = 0; x < stride; x++) {
      float sum = 0;
      for (int i = -radius; i <= radius; i++)
        sum += weights[static_cast<size_t>(i + radius)] * middle[clamp(static_cast<long>(y) + i, in.height) * stride + x];
      out.row(y)[x] = static_cast<uint8_t>(sum + 0.5f);
    }
  });
  return out;
}

// Computes how much the brightness changes at each place, in one direction.
static std::vector<int> slope(const Image& in, bool across) {
  std::vector<int> out(in.width * in.height);
  auto brightness = [&](long x, long y) {
    const uint8_t* p = in.row(clamp(y, in.height)) + clamp(x, in.width) * in.channels;
    return in.channels == 1 ? p[0] : (p[0] * 3 + p[1] * 6 + p[2]) / 10;
  };
  for_rows(in.height, [&](size_t row) {
    long y = static_cast<long>(row);
    for (long x = 0; x < static_cast<long>(in.width); x++) {
      int sum = 0;
      for (long i = -1; i <= 1; i++) {
        int weight = i == 0 ? 2 : 1;
        sum += weight *
               (across ? brightness(x + 1, y + i) - brightness(x - 1, y + i) : brightness(x + i, y + 1) - brightness(x + i, y - 1));
      }
      out[row * in.width + static_cast<size_t>(x)] = sum;
    }
  });
  return out;
}

static Image filter(const Image& in, int radius) {
  Image out = blur(in, radius);
  std::vector<int> across, down;
  if (serial) {
    across = slope(out, true);
    down = slope(out, false);
  } else {
    fiberthread::parallel_invoke([&] { across = slope(out, true); }, [&] { down = slope(out, false); });
  }
  for_rows(out.height, [&](size_t y) {
    for (size_t x = 0; x < out.width; x++) {
      size_t i = y * out.width + x;
      int edge = (std::abs(across[i]) + std::abs(down[i])) / 4;
      for (size_t c = 0; c < out.channels; c++) {
        uint8_t& v = out.row(y)[x * out.channels + c];
        v = static_cast<uint8_t>(v > edge ? v - edge : 0);
      }
    }
  });
  return out;
}

// Makes a picture of circles on a gradient of colours.
static Image make(size_t width, size_t height) {
  Image image;
  image.size(width, height, 3);
  for (size_t y = 0; y < height; y++)
    for (size_t x = 0; x < width; x++) {
      size_t dx = x % 64 > 32 ? x % 64 - 32 : 32 - x % 64, dy = y % 64 > 32 ? y % 64 - 32 : 32 - y % 64;
      bool inside = dx * dx + dy * dy < 24 * 24;
      uint8_t* p = image.row(y) + x * 3;
      p[0] = static_cast<uint8_t>(inside ? 255 - y % 256 : x * 255 / width);
      p[1] = static_cast<uint8_t>(inside ? x % 256 : 60);
      p[2] = static_cast<uint8_t>(y * 255 / height);
    }
  return image;
}

static int usage() {
  std::fprintf(stderr,
               "usage: filter [--serial] [--radius N] [--times N] IN OUT\n"
               "       filter --make WIDTHxHEIGHT OUT\n       filter --check [--radius N] IN\n");
  return 2;
}

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

int main(int argc, char** argv) {
  int radius = 4, times = 1;
  size_t width = 0, height = 0;
  bool check = false;
  std::vector<const char*> names;
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (a == "--serial") serial = true;
    else if (a == "--check") check = true;
    else if (a == "--radius") radius = std::atoi(value), i++;
    else if (a == "--times") times = std::atoi(value), i++;
    else if (a == "--make" && std::sscanf(value, "%zux%zu", &width, &height) == 2) i++;
    else if (a[0] == '-' && a != "-") return usage();
    else names.push_back(argv[i]);
  }
  if (radius < 0 || radius > 100 || times < 1 || names.size() != (width || check ? 1u : 2u)) return usage();
  if (width) {
    write_image(make(width, height), names[0]);
    return 0;
  }
  Image in = read_image(names[0]), out;
  if (check) {
    serial = true;
    Image expected = filter(in, radius);
    serial = false;
    bool same = filter(in, radius).bytes == expected.bytes;
    std::printf("%s\n", same ? "the same" : "different");
    return !same;
  }
  double start = now();
  for (int i = 0; i < times; i++) out = filter(in, radius);
  std::fprintf(stderr, "%.1f ms each\n", (now() - start) * 1000 / times);
  write_image(out, names[1]);
  return 0;
}
