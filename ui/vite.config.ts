import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vitest/config'

// `vite build --mode mock` builds the page against `test/mock`, which answers the commands without a program behind it.
export default defineConfig(({ mode }) => ({
  plugins: [svelte()],
  clearScreen: false,
  // The stand-in for the program reads the sample in `assets`.
  server: { port: 5173, strictPort: true, fs: { allow: ['..'] } },
  // Components are mounted in tests: take Svelte's browser build, not the one for servers.
  resolve: mode === 'test' ? { conditions: ['browser'] } : {},
  build: {
    target: 'safari16',
    outDir: mode === 'mock' ? 'dist-mock' : 'dist',
    // Fonts stay files: `font-src 'self'`, fetched once.
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  test: {
    environment: 'jsdom',
    include: ['test/**/*.test.ts'],
    setupFiles: ['test/setup.ts'],
    // A test reads the colours; others need no styles.
    css: { include: [/tokens\.css/] },
  },
}))
