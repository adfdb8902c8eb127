// SPDX-License-Identifier: MIT
const {Worker,isMainThread,parentPort,workerData}=require('worker_threads'); const crypto=require('crypto'); const fs=require('fs');
if(isMainThread){ let out=[]; let n=8,done=0; for(let i=0;i<n;i++){ const w=new Worker(__filename,{workerData:i}); w.on('message',m=>{out.push(m); if(++done==n) next();}); }
 function next(){ console.log(out.sort().join('\n')); let k=0; for(let i=0;i<16;i++) crypto.pbkdf2('p','s'+i,20000,32,'sha256',(e,d)=>{ if(++k==16){ console.log('pbkdf2'); let f=0; for(let j=0;j<50;j++) fs.readFile('/etc/passwd',(e,b)=>{ if(++f==50) console.log('fs',b.length>10); }); } }); } }
else { let h=crypto.createHash('sha256'); let s=0; for(let i=0;i<2000000;i++) s=(s*31+i)%1000003; h.update(''+s+workerData); parentPort.postMessage(workerData+':'+h.digest('hex')); }
